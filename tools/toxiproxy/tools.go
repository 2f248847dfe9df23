//go:build tools

// Package tools names the fault proxy that tests put between the gateway and nsqd. It is a module
// of its own, so that what it needs changes nothing of what nsqd is built from.
package tools

import (
	_ "github.com/Shopify/toxiproxy/v2/cmd/server"
)
