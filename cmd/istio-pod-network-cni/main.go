// Command istio-pod-network-cni is the chained CNI plugin: it reports each new sandbox to the node's agent and waits until its rules
// are there. It has no rules, Kubernetes client or credentials of its own.
package main

import (
	"context"
	"os"

	"istio-pod-network-controller/runtime/cni"
)

func main() { os.Exit(cni.Main(context.Background(), os.Stdout, os.Stderr)) }
