package e2e

import (
	"context"
	"testing"
	"time"
)

const (
	// patience bounds a wait. What takes longer than this on two busy cores is broken.
	patience = 2 * time.Minute
	// answerWithin bounds a connection and its answer. One that is lost stays lost, and is no slow one on two busy cores.
	answerWithin = 15 * time.Second
	// pollEvery spares the API server, which shares the cores with everything under test.
	pollEvery = 100 * time.Millisecond
)

// eventually asks until there is no error, and fails the test with the last one when the time is over.
func eventually(t testing.TB, what string, ask func(ctx context.Context) error) {
	t.Helper()
	within(t, patience, what, ask)
}

// within is eventually with another patience.
func within(t testing.TB, patience time.Duration, what string, ask func(ctx context.Context) error) {
	t.Helper()
	// What a test waits for while it cleans up counts, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	deadline, _ := ctx.Deadline()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return
		}
		// In the last second the client may say no more than that it will not be served in time.
		if last == nil || time.Until(deadline) > time.Second {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, patience, last)
		case <-tick.C:
		}
	}
}
