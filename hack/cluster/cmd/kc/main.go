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

// A first interrupt ends what is under way in order: a start that is broken off takes back what it did. So does the end of the terminal, unless
// nohup wants it to be ignored.
func main() {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	err := cli.New(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kc: "+err.Error())
		os.Exit(1)
	}
}
