//go:build tools

// Package tools names Helm 3, which renders the chart beside Helm 4. It is a module of its own, so
// that what it needs changes nothing of what nsqd is built from.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
