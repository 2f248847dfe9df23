//go:build tools

// Package tools names the module whose test data says which pods are "restricted". Nothing of it is
// built: `make tools/bin/pod-security` copies the data.
package tools

import (
	_ "k8s.io/pod-security-admission/api"
)
