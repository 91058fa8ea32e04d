package controllers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Each letter is a check at the time that the contention asks for: r has repaired something, c has found nothing.
func TestPausesOfAContention(t *testing.T) {
	for checks, want := range map[string]string{
		"r":         "1s",
		"rc":        "1s 2s",
		"rccccc":    "1s 2s 4s 8s 10s 10s",
		"rrrrrrrr":  "1s 2s 4s 8s 16s 32s 1m0s 1m0s",
		"rrrrrrrcc": "1s 2s 4s 8s 16s 32s 1m0s 30s 15s",
		"rrrccrcc":  "1s 2s 4s 8s 10s 8s 10s 10s",
	} {
		now, start := time.Unix(1000, 0), contention{}
		c := start
		var got []string
		for _, check := range checks {
			if check == 'r' {
				c = c.withRepair(now)
			} else {
				c = c.withoutRepair(now)
			}
			next := c.next(10 * time.Second)
			got = append(got, next.Sub(now).String())
			now = next
		}
		if d := cmp.Diff(want, strings.Join(got, " ")); d != "" {
			t.Errorf("%s: %s", checks, d)
		}
	}
}

func TestWhenAContentionEnds(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		checks []time.Duration // after the last repair
		want   bool
	}{
		"a minute and three checks": {[]time.Duration{time.Second, 30 * time.Second, time.Minute}, true},
		"a minute and two checks":   {[]time.Duration{time.Second, time.Minute}, false},
		"checks within seconds":     {[]time.Duration{1, 2, 3, 4, 5}, false},
		"no checks":                 {nil, false},
	} {
		got := contention{}.withRepair(start).withRepair(start).withRepair(start)
		for _, after := range c.checks {
			got = got.withoutRepair(start.Add(after))
		}
		if got.active() == c.want || got.contended() == c.want {
			t.Errorf("%s: active %t, contended %t", name, got.active(), got.contended())
		}
	}
}

// An interval of an hour, or none, leaves the checks of a contention as they are.
func TestAContentionWithoutUsualChecks(t *testing.T) {
	now := time.Unix(1000, 0)
	if got := (contention{}).withRepair(now).withoutRepair(now).next(0).Sub(now); got != 2*time.Second {
		t.Errorf("next check after %s", got)
	}
}
