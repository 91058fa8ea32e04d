// Command kc is the one-node cluster: see README.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"istio-pod-network-controller/hack/cluster/internal/cli"
)

// A first interrupt ends what is under way in order: a start that is broken off takes back what it did.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := cli.New(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kc: "+err.Error())
		os.Exit(1)
	}
}
