package install

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCalls_podWithoutCall_isNamed(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	chainedAt := at(10)
	for name, tc := range map[string]struct {
		pods   []Pod
		called []string
		want   string // a word of the error, nothing for none
	}{
		"no pod yet": {},
		"a pod from before the plugin was chained":    {pods: []Pod{{"a/old", at(9)}}},
		"a pod with a call":                           {pods: []Pod{{"a/new", at(11)}}, called: []string{"a/new"}},
		"a pod without a call":                        {pods: []Pod{{"a/new", at(11)}}, want: "a/new"},
		"a call for another pod":                      {pods: []Pod{{"a/new", at(11)}}, called: []string{"b/new"}, want: "a/new"},
		"a call for an older pod, by the former list": {pods: []Pod{{"a/x", at(11)}, {"a/y", at(12)}}, called: []string{"a/x"}, want: "a/y"},
		"a call for a newer pod":                      {pods: []Pod{{"a/x", at(11)}, {"a/y", at(12)}}, called: []string{"a/y"}},
		"a call for a pod of the same second":         {pods: []Pod{{"a/x", at(11)}, {"a/y", at(11)}}, called: []string{"a/y"}},
		"the newest of several is named":              {pods: []Pod{{"a/x", at(11)}, {"a/z", at(13)}, {"a/y", at(12)}}, want: "a/z"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Calls{}
			for _, pod := range tc.called {
				c.Called(pod, at(11))
			}
			err := c.Check(tc.pods, chainedAt, at(20))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCalls_podGone_isForgotten(t *testing.T) {
	c, now := &Calls{}, time.Unix(1000, 0)
	c.Called("a/gone", now)
	c.Called("a/there", now)
	_ = c.Check([]Pod{{"a/there", now}}, now, now.Add(callTTL))
	if len(c.byPod) != 2 {
		t.Errorf("forgotten too early: %v", c.byPod)
	}
	_ = c.Check([]Pod{{"a/there", now}}, now, now.Add(callTTL+1))
	if len(c.byPod) != 1 {
		t.Errorf("remembered: %v", c.byPod)
	}
}

// The plugin may be called while Check is not: when it is in the chain and something else is wrong.
func TestCalls_noChecks_areForgotten(t *testing.T) {
	c, now := &Calls{}, time.Unix(1000, 0)
	for i := range 10_000 {
		c.Called(fmt.Sprint("a/job-", i), now)
		now = now.Add(time.Second)
	}
	if most := 2 * int(callTTL/time.Second); len(c.byPod) > most {
		t.Errorf("%d remembered, want %d at most", len(c.byPod), most)
	}
}
