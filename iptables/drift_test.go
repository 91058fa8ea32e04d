package iptables

import (
	"slices"
	"strings"
	"testing"
)

func TestBoundedDriftHasEveryKind(t *testing.T) {
	var d Drift
	for range 100 {
		d = append(d, Difference{KindRules, "+ \x1b[31mred\n" + strings.Repeat("x", 1000)})
	}
	d = append(d, Difference{KindSets, "+ set x"})
	got := d.Bounded()
	if len(got) != maxReported || !slices.Equal(got.Kinds(), []Kind{KindRules, KindSets}) {
		t.Errorf("%d differences of the kinds %q", len(got), got.Kinds())
	}
	if first := got[0].Text; len(first) != maxTextBytes || !strings.HasPrefix(first, "+ ?[31mred?xxx") || !strings.HasSuffix(first, "...") {
		t.Errorf("text %q", first)
	}
	if last := got[len(got)-1].Text; last != "and 92 more differences" {
		t.Errorf("the last is %q", last)
	}
	if few := (Drift{{KindRoute, "- route"}}); !slices.Equal(few.Bounded(), few) {
		t.Errorf("a single difference became %q", few.Bounded())
	}
}
