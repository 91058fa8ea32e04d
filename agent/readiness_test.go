package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	missing := map[string]error{}
	r := &readiness{}
	for _, name := range []string{"nri", "cni", "runtime"} {
		r.add(part{name: name, check: func(context.Context) error { return missing[name] }})
	}
	if err := r.check(t.Context()); err != nil {
		t.Errorf("all is there: %v", err)
	}
	for _, name := range []string{"nri", "runtime"} {
		missing[name] = errors.New("away")
		if err := r.check(t.Context()); !errors.Is(err, missing[name]) || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s is away: %v", name, err)
		}
		delete(missing, name)
	}
}

func TestReadinessLooksAtAllPartsAtOnce(t *testing.T) {
	rendezvous := make(chan struct{})
	r := &readiness{}
	for _, name := range []string{"a", "b"} {
		r.add(part{name: name, check: func(ctx context.Context) error {
			select {
			case rendezvous <- struct{}{}:
			case <-rendezvous:
			case <-ctx.Done():
				return ctx.Err()
			}
			return errors.New("away")
		}})
	}
	if err := r.check(t.Context()); err == nil || err.Error() != "a: away\nb: away" {
		t.Errorf("%v, want both that are missing", err)
	}
}

func TestReadinessWaitsForNoPartForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, began := &readiness{}, time.Now()
		r.add(part{name: "runtime", check: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		if err := r.check(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want a deadline", err)
		}
		if took := time.Since(began); took != checkTimeout {
			t.Errorf("waited %s, want %s", took, checkTimeout)
		}
	})
}

// An agent that cannot get ready, as the API server is away, is not killed by the kubelet for that.
func TestAStartIsOverWhenReadyOrAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		r := &readiness{}
		r.add(part{name: "cache", check: func(context.Context) error { return away }})
		check := r.started(time.Now().Add(startPatience))
		if err := check(t.Context()); !errors.Is(err, away) {
			t.Errorf("not ready: %v", err)
		}
		away = nil
		if err := check(t.Context()); err != nil {
			t.Errorf("ready: %v", err)
		}
		away = errors.New("away again")
		<-time.After(startPatience + time.Nanosecond)
		if err := check(t.Context()); err != nil {
			t.Errorf("after %s: %v", startPatience, err)
		}
	})
}
