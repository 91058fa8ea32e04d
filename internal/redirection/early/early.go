// Package early runs the command `wait` while the program is still being initialised: before the packages of Kubernetes and
// of protocol buffers, which cost four times the memory of all that `wait` does. Go initialises packages in the order of their
// import paths, each as soon as what it imports is ready, so that this one comes early by importing next to nothing.
//
// It is a shortcut and nothing else: a command line that it does not know goes the common way, which has the same command.
package early

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"istio-pod-network-controller/internal/redirection"
)

// ExitMissing is the exit status of `wait` when rules are missing.
const ExitMissing = 95

// A variable without a name, for the sake of what computing it does.
var _ = run(os.Args, os.Exit)

// run ends the process if the arguments are those of `wait`; only in a test does it come back with true.
func run(args []string, exit func(int)) bool {
	if len(args) < 2 || args[1] != "wait" {
		return false
	}
	o, ok := parse(args[2:])
	if !ok {
		return false
	}
	//nolint:forbidigo // this is where the program starts
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := redirection.Run(ctx, o, os.Stdout)
	if err != nil {
		_, _ = os.Stderr.WriteString("error: " + err.Error() + "\n")
	}
	exit(code(err))
	return true
}

func code(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, redirection.ErrMissing):
		return ExitMissing
	}
	return 1
}

// parse knows the flags as people and the chart write them; false leaves the rest, and all complaints, to the common way.
func parse(args []string) (o redirection.Options, ok bool) {
	o = redirection.DefaultOptions()
	for len(args) > 0 {
		name, value, joined := bytes.Cut([]byte(args[0]), []byte("="))
		args = args[1:]
		if string(name) == "--once" && !joined {
			o.Once = true
			continue
		}
		if !joined {
			if len(args) == 0 {
				return o, false
			}
			value, args = []byte(args[0]), args[1:]
		}
		var err error
		switch string(name) {
		case "--port":
			var port uint64
			port, err = strconv.ParseUint(string(value), 10, 16)
			o.Port = uint16(port)
		case "--timeout":
			o.Timeout, err = time.ParseDuration(string(value))
		default:
			return o, false
		}
		if err != nil {
			return o, false
		}
	}
	return o, true
}
