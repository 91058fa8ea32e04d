package controllers

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// mustTake takes a turn that is free.
func mustTake(t *testing.T, k *ticket) (end func()) {
	t.Helper()
	end, err := k.take(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

func TestTurns_earlyCalls_comeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns
		first := all.join("uid-1")
		end := mustTake(t, first)
		var order []string
		for i, early := range []bool{false, true, false, true} {
			go func() {
				k := all.join("uid-1")
				defer k.leave()
				done, err := k.take(t.Context(), early)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, strconv.Itoa(i))
				done()
			}()
			synctest.Wait()
		}
		end()
		first.leave()
		synctest.Wait()
		if !slices.Equal(order, []string{"1", "3", "0", "2"}) || len(all.pod) != 0 {
			t.Errorf("order %v, %d pods left", order, len(all.pod))
		}
	})
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
		_, err := waiting.take(ctx, true)
		if waited := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || waited != 200*time.Millisecond {
			t.Errorf("waited %s, error %v", waited, err)
		}
		if _, err := all.join("uid-2").take(t.Context(), false); err != nil {
			t.Errorf("another pod: %v", err)
		}
		end()
		mustTake(t, waiting)()
	})
}

// A turn that comes at the very moment at which its call gives up goes to the next one.
func TestTake_turnComesTooLate_isPassedOn(t *testing.T) {
	var all turns
	k := all.join("uid-1")
	end := mustTake(t, k)
	late := k.queue(true)
	end()
	if k.giveUp(late) {
		t.Fatal("the turn has not come")
	}
	k.pass()
	mustTake(t, k)()
	if k.held {
		t.Error("the turn is still held")
	}
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
