// Command testapp is both ends of a connection under test: a server that says which connection it sees, and clients that count answers.
//
//	testapp serve [-http PORTS] [-tcp PORTS] [-bind ADDR] [-banner TEXT] [-ask URL,...]
//	testapp get [-n N] [-host NAME,...] [-4|-6] [-timeout D] URL
//	testapp lookup [-server ADDR:PORT] [-network udp|tcp] [-timeout D] NAME
//	testapp dial [-n N] [-for D] [-every D] [-report D] [-last FILE] [-4|-6] [-timeout D] URL|HOST:PORT
//	testapp pry [-max PID]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// errUsage says how the command is called.
var errUsage = errors.New("usage: testapp serve|get|dial|lookup|pry [flags] [TARGET]; -h after the command lists its flags")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testapp: "+err.Error())
		os.Exit(1)
	}
}

// run is main without the process around it. Results go to out, everything else to progress.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch command, rest := args[0], args[1:]; command {
	case "serve":
		return serve(ctx, rest, progress)
	case "get":
		return get(ctx, rest, out, progress)
	case "dial":
		return dial(ctx, rest, out, progress)
	case "lookup":
		return lookup(ctx, rest, out, progress)
	case "pry":
		return pry(ctx, rest, out, progress)
	default:
		return errUsage
	}
}
