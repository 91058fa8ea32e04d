//go:build !nosidecars

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"istio-pod-network-controller/sidecars/node"
)

// takeTerminal has every key of a terminal read as it is, until restore is called. sizes has the terminal's size, now and after each change.
func takeTerminal(ctx context.Context, in io.Reader) (sizes <-chan node.TerminalSize, restore func(), err error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil, nil, errors.New("--tty: the input is no terminal: give kubectl exec -it as well, or leave --tty out")
	}
	fd := int(file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, nil, fmt.Errorf("--tty: set the terminal to raw mode: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	return watchSize(ctx, fd), func() {
		cancel()
		_ = term.Restore(fd, before) // the terminal has gone
	}, nil
}

// watchSize sends a terminal's size, now and after each change, until ctx ends.
func watchSize(ctx context.Context, fd int) <-chan node.TerminalSize {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	out := make(chan node.TerminalSize)
	go func() {
		defer close(out)
		defer signal.Stop(changes)
		for {
			if width, height, err := term.GetSize(fd); err == nil {
				select {
				case <-ctx.Done():
					return
				case out <- node.TerminalSize{Width: uint16(width), Height: uint16(height)}:
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changes:
			}
		}
	}()
	return out
}
