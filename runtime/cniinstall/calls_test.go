package cniinstall

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCallsTellWhetherTheRuntimeAsks(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	chainedAt := at(10)
	for name, tc := range map[string]struct {
		pods  []Pod
		heard []string
		want  string // a word of the error, nothing for none
	}{
		"no pod yet": {},
		"a pod from before the plugin was chained":         {pods: []Pod{{"a/old", at(9)}}},
		"a pod that was asked about":                       {pods: []Pod{{"a/new", at(11)}}, heard: []string{"a/new"}},
		"a pod that nobody asked about":                    {pods: []Pod{{"a/new", at(11)}}, want: "a/new"},
		"another one was asked about":                      {pods: []Pod{{"a/new", at(11)}}, heard: []string{"b/new"}, want: "a/new"},
		"an older one was asked about, by the former list": {pods: []Pod{{"a/x", at(11)}, {"a/y", at(12)}}, heard: []string{"a/x"}, want: "a/y"},
		"a newer one was asked about":                      {pods: []Pod{{"a/x", at(11)}, {"a/y", at(12)}}, heard: []string{"a/y"}},
		"at the same second":                               {pods: []Pod{{"a/x", at(11)}, {"a/y", at(11)}}, heard: []string{"a/y"}},
		"the newest of several is named":                   {pods: []Pod{{"a/x", at(11)}, {"a/z", at(13)}, {"a/y", at(12)}}, want: "a/z"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Calls{}
			for _, pod := range tc.heard {
				c.Heard(pod, at(11))
			}
			err := c.Judge(tc.pods, chainedAt, at(20))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCallsAreForgotten(t *testing.T) {
	c, now := &Calls{}, time.Unix(1000, 0)
	c.Heard("a/gone", now)
	c.Heard("a/there", now)
	_ = c.Judge([]Pod{{"a/there", now}}, now, now.Add(callMemory))
	if len(c.heard) != 2 {
		t.Errorf("forgotten too early: %v", c.heard)
	}
	_ = c.Judge([]Pod{{"a/there", now}}, now, now.Add(callMemory+1))
	if len(c.heard) != 1 {
		t.Errorf("remembered: %v", c.heard)
	}
}

// The plugin may be called while nobody judges: when it is in the chain and something else about it is wrong.
func TestCallsAreForgottenWithoutAJudge(t *testing.T) {
	c, now := &Calls{}, time.Unix(1000, 0)
	for i := range 10_000 {
		c.Heard(fmt.Sprint("a/job-", i), now)
		now = now.Add(time.Second)
	}
	if most := 2 * int(callMemory/time.Second); len(c.heard) > most {
		t.Errorf("%d remembered, want %d at most", len(c.heard), most)
	}
}
