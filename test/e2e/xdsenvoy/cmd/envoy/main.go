// Command envoy is a stand-in for Envoy, for pilot-agent to start: see package xdsenvoy.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/e2e/xdsenvoy"
)

func main() {
	if slices.Contains(os.Args[1:], "--version") {
		fmt.Fprintln(os.Stdout, "envoy  version: stand-in/0.0.0/Clean/RELEASE/Go")
		return
	}
	options, err := xdsenvoy.ParseOptions(os.Args[1:])
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: options.Level}))
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
		err = xdsenvoy.Run(ctx, options, log)
		stop()
	}
	if err != nil {
		log.Error("ended", "error", err)
		os.Exit(1)
	}
}
