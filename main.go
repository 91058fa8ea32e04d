// Command istio-pod-network-controller programs the traffic redirection of a service mesh's pods from outside of them.
package main

import (
	"os"
	goruntime "runtime"

	"istio-pod-network-controller/agent/cli"
)

// The main goroutine keeps the main thread, which may not enter a pod's network namespace since /proc/self shows it. Work that came to
// that thread would have to be passed on to another.
func init() { goruntime.LockOSThread() } //nolint:gochecknoinits // later, the main goroutine may be on another thread

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
