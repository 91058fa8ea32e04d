package charttest

import "testing"

// What is printed after an installation holds for its values and its cluster.
func TestNotesAreTrue(t *testing.T) {
	const (
		late    = "Pods start without rules"
		others  = "On others pods start without rules"
		waiting = "On others pods wait"
		nothing = "do nothing here"
		unbound = "may patch the status of every pod"
	)
	for name, tc := range map[string]struct {
		in, kind string
		want     []string
		wantNot  []string
	}{
		"the defaults":                   {in: "{}", want: []string{others, "NoEarlyHook", unbound, "helm test", "enforce=privileged", "controller check"}, wantNot: []string{late, nothing}},
		"inspect by commands":            {in: "{}", want: []string{"inspect NAMESPACE/POD", "inspect.enabled=true"}},
		"inspect over the network":       {in: "{inspect: {enabled: true}}", want: []string{"inspect NAMESPACE/POD", "TCP 15078"}, wantNot: []string{"inspect.enabled=true"}},
		"inspect at another port":        {in: "{inspect: {enabled: true}, inspectAddr: ':25078'}", want: []string{"TCP 25078"}},
		"with policies":                  {in: "{}", kind: validating, want: []string{others}, wantNot: []string{unbound}},
		"a token that is not bounded":    {in: "{startupTaint: true, admission: {restrictAgent: false}}", kind: validating, want: []string{unbound + ", and every node", "restrictAgent is false"}},
		"reports that are not bounded":   {in: "{sidecars: {enabled: true}}", want: []string{unbound + ", and write every ManagedProxy"}},
		"nobody asks early":              {in: "{nri: off, cni: off}", want: []string{late, "nri=off and cni=off"}, wantNot: []string{others}},
		"nobody asks, after the chain":   {in: "{nri: off, cni: uninstall}", want: []string{late, "cni=uninstall: the agents remove"}},
		"nobody asks, pods wait":         {in: "{nri: off, admission: {waitContainer: true}}", kind: mutating, wantNot: []string{late, nothing}},
		"they cannot wait":               {in: "{nri: off, admission: {waitContainer: true}}", want: []string{late, nothing, "has no MutatingAdmissionPolicy"}},
		"they may not wait":              {in: "{admission: {enabled: false, waitContainer: true}}", kind: mutating, want: []string{others, nothing, "admission.enabled is false"}},
		"pods wait where NRI is not":     {in: "{admission: {waitContainer: true}}", kind: mutating, want: []string{waiting, "NoEarlyHook"}, wantNot: []string{others, "Switch NRI on"}},
		"NRI is a must":                  {in: "{nri: required}", want: []string{"does not become ready"}, wantNot: []string{late, others}},
		"the chain":                      {in: "{cni: install}", wantNot: []string{late, others, "NoEarlyHook"}},
		"the chain instead of NRI":       {in: "{cni: install, nri: off}", wantNot: []string{late, others}},
		"runtimes insist, and cannot":    {in: "{admission: {requiredPlugins: true}}", want: []string{nothing}},
		"pods that Istio injected":       {in: "{select: injected}", want: []string{"Nothing to annotate"}, wantNot: []string{"kubectl annotate"}},
		"a cluster that is OpenShift":    {in: "{}", kind: openshift, want: []string{"looks like OpenShift"}},
		"OpenShift, and known as such":   {in: "{platform: openshift}", kind: openshift, wantNot: []string{"looks like OpenShift"}, want: []string{"SCC"}},
		"the value's name of 2018":       {in: "{kubernetesDistribution: OpenShift}", want: []string{"SCC"}, wantNot: []string{"deprecated", "kubernetesDistribution"}},
		"proxies of the agent":           {in: "{sidecars: {enabled: true}}", want: []string{"any program on every node", name + "-profiles-edit"}},
		"no proxies":                     {in: "{sidecars: {enabled: false}}", wantNot: []string{"ProxyProfile", "sidecars"}},
		"Docker, whose socket is a file": {in: "{containerRuntime: docker}", want: []string{"Restart the agent"}},
	} {
		notes := name + ":\n" + rendering(t, tc.in, tc.kind).Notes
		expectWords(t, notes, true, tc.want...)
		expectWords(t, notes, false, append(tc.wantNot, "\n\n\n")...)
	}
}
