"""Every setting: types of values, groups of settings, and the sources of values."""
