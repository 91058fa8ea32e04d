package charttest

import (
	"strings"
	"testing"
)

// What is printed after an installation holds for its values and its cluster. Ten lines are read.
func TestNotesAreTrue(t *testing.T) {
	const (
		late    = "pods start without rules"
		unbound = "may patch the status of every pod"
		ask     = "kubectl annotate namespace"
	)
	for name, tc := range map[string]struct {
		in, kind string
		want     []string
		wantNot  []string
	}{
		"the defaults":                   {in: "{}", kind: validating, want: []string{"check --wait", ask, "docs/removal.md"}, wantNot: []string{late, unbound}},
		"a cluster without policies":     {in: "{}", want: []string{unbound + ": the cluster has no"}},
		"a token that is not bounded":    {in: "{hooks.startupTaint.enabled: true, admission: {restrictAgent: false}}", kind: validating, want: []string{unbound + ", and every node", "restrictAgent is false"}},
		"reports that are not bounded":   {in: "{proxies: {enabled: true}}", want: []string{unbound + ", and write every ManagedProxy"}},
		"nobody asks early":              {in: "{hooks.nri.mode: off, hooks.cni.mode: off}", want: []string{late, "hooks.nri.mode=off and hooks.cni.mode=off"}},
		"nobody asks, after the chain":   {in: "{hooks.nri.mode: off, hooks.cni.mode: uninstall}", want: []string{late, "hooks.cni.mode=uninstall: agents that are ready"}},
		"nobody asks, pods wait":         {in: "{hooks.nri.mode: off, admission: {waitContainer: true}}", kind: mutating, wantNot: []string{late}},
		"they may not wait":              {in: "{hooks.nri.mode: off, admission: {enabled: false, waitContainer: true}}", kind: mutating, want: []string{late}},
		"NRI is a must":                  {in: "{hooks.nri.mode: required}", wantNot: []string{late}},
		"the chain instead of NRI":       {in: "{hooks.cni.mode: install, hooks.nri.mode: off}", wantNot: []string{late}},
		"pods that Istio injected":       {in: "{redirection.select: injected}", wantNot: []string{ask}},
		"proxies of the agent":           {in: "{proxies: {enabled: true}}", want: []string{"any program on every node", name + "-profiles-edit"}},
		"no proxies":                     {in: "{proxies: {enabled: false}}", wantNot: []string{"ProxyProfile"}},
		"Docker, whose socket is a file": {in: "{runtime.name: docker}", want: []string{"Restart the agent"}},
	} {
		notes := rendering(t, tc.in, tc.kind).Notes
		if lines := strings.Count(notes, "\n") + 1; tc.in == "{}" && lines > 10 {
			t.Errorf("%s: %d lines", name, lines)
		}
		notes = name + ":\n" + notes
		expectWords(t, notes, true, tc.want...)
		expectWords(t, notes, false, append(tc.wantNot, "\n\n\n")...)
	}
}
