package controllers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// mustTake takes a turn that is free.
func mustTake(t *testing.T, k *ticket) (end func()) {
	t.Helper()
	end, err := k.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// A call that the runtime waits for has 200 ms or the like; who works on the pod may take longer.
func TestTake_contextEnds_returns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns
		held := all.join("uid-1")
		end := mustTake(t, held)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		waiting := all.join("uid-1")
		_, err := waiting.take(ctx)
		if waited := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || waited != 200*time.Millisecond {
			t.Errorf("waited %s, error %v", waited, err)
		}
		if _, err := all.join("uid-2").take(t.Context()); err != nil {
			t.Errorf("another pod: %v", err)
		}
		end()
		mustTake(t, waiting)()
	})
}

func TestIfLast_overtaken_doesNothing(t *testing.T) {
	var all turns
	k := all.join("uid-1")
	recorded := 0
	k.ifLast(func() { recorded++ })
	other, late := all.join("uid-1"), all.join("uid-1")
	mustTake(t, late)() // and found that it was overtaken
	k.ifLast(func() { recorded++ })
	if !other.use() || late.use() {
		t.Error("want one use")
	}
	other.ifLast(func() { recorded++ })
	k.ifLast(func() { recorded++ })
	if recorded != 3 {
		t.Errorf("recorded %d times", recorded)
	}
}
