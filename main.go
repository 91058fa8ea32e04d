// Command istio-pod-network-controller programs the traffic redirection of a service mesh's pods from outside of them.
package main

import (
	"os"

	"istio-pod-network-controller/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
