// Command istio-pod-network-cni is the chained CNI plugin: it tells the node's agent about each new sandbox and waits until
// its rules are in. It knows no rules, no Kubernetes and no credential.
package main

import (
	"context"
	"os"

	"istio-pod-network-controller/runtime/cni"
)

func main() { os.Exit(cni.Main(context.Background(), os.Stdout, os.Stderr)) }
