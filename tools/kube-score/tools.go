//go:build tools

// Package tools names kube-score, which looks at what the chart renders. It is a module of its own,
// so that what it needs changes nothing of what nsqd is built from.
package tools

import (
	_ "github.com/zegl/kube-score/cmd/kube-score"
)
