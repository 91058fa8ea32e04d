package serving

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func few() Bounds {
	return Bounds{RateEach: 5, BurstEach: 20, Rate: 20, Burst: 40, OpenEach: 8, Open: 32}
}

// enterAll tries n connections of one address after the other, none of which stays open, and returns how many were served.
func enterAll(l *limits, from string, n int) (served int) {
	for range n {
		if leave, ok := l.enter(netip.MustParseAddr(from)); ok {
			leave()
			served++
		}
	}
	return served
}

func TestNoAddressUsesUpWhatIsLeftToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(few())
		if got := enterAll(l, "192.0.2.1", 1000); got != few().BurstEach {
			t.Errorf("one address was served %d times at once, want %d", got, few().BurstEach)
		}
		if got := enterAll(l, "192.0.2.2", 1); got != 1 {
			t.Error("another address is not served")
		}
		served := 0
		for i := range 100 {
			served += enterAll(l, fmt.Sprintf("192.0.2.%d", 10+i), 10)
		}
		if want := few().Burst - few().BurstEach - 1; served != want {
			t.Errorf("all others together were served %d times at once, want %d", served, want)
		}
		<-time.After(time.Second)
		if got := enterAll(l, "192.0.2.1", 1000); got != few().RateEach {
			t.Errorf("a second later one address is served %d times, want %d", got, few().RateEach)
		}
	})
}

func TestANetworkOfIPv6IsOneCaller(t *testing.T) {
	l := newLimits(few())
	served := 0
	for i := range 100 {
		served += enterAll(l, fmt.Sprintf("2001:db8::%x", i), 1)
	}
	if served != few().BurstEach {
		t.Errorf("%d were served, want %d", served, few().BurstEach)
	}
	if callerOf(netip.MustParseAddr("::ffff:192.0.2.1")) != callerOf(netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address counts twice")
	}
}

func TestOpenConnectionsAreBounded(t *testing.T) {
	l := newLimits(few())
	var leaves []func()
	for range few().BurstEach {
		if leave, ok := l.enter(netip.MustParseAddr("192.0.2.1")); ok {
			leaves = append(leaves, leave)
		}
	}
	if len(leaves) != few().OpenEach {
		t.Fatalf("%d are open, want %d", len(leaves), few().OpenEach)
	}
	for _, leave := range leaves {
		leave()
		leave() // as a connection that is closed twice
	}
	if l.open != 0 {
		t.Errorf("%d are counted after all were closed", l.open)
	}
}

func TestCallersAreForgotten(t *testing.T) {
	l := newLimits(few())
	for i := range 3 * maxCallers {
		enterAll(l, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), 1)
	}
	if len(l.callers) > maxCallers {
		t.Errorf("%d are remembered", len(l.callers))
	}
}
