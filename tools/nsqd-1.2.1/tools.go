//go:build tools

// Package tools names the older nsqd and nsqlookupd that tests can use instead of the current
// ones, so that go.mod and go.sum pin them.
package tools

import (
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
)
