package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/rollout"
)

// Which version of a profile works is forgotten with the profile, also if that was deleted while no agent ran, or before the last pod whose rules lead to
// its proxy.
func TestForgetGone_profileDeleted_isForgotten(t *testing.T) {
	cluster := newChoosing().read(t)
	root := t.TempDir()
	for _, name := range []string{"edge", "deleted", "led"} {
		if err := os.WriteFile(filepath.Join(root, name+".json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reports := newSidecarReports(nil, nil, "node-1")
	p := &Proxies{cluster: cluster, reports: reports, podGone: make(chan struct{}, 1), manager: sidecars.New(sidecars.Config{
		Homes: home.Homes{Root: root}, Good: &rollout.Good{Dir: root}, Rollout: &rollout.Queue{}, Reporter: ownReporter{reports},
	})}
	if _, _, err := p.cluster.routes.applied(theSandbox(), routeTarget{Profile: "led"}); err != nil {
		t.Fatal(err)
	}
	remembers := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%q are remembered", want), func() bool { return slices.Equal(p.manager.Good.Profiles(), want) },
			func() string { return fmt.Sprint(p.manager.Good.Profiles()) })
	}
	go func() { _ = p.forgetGone(t.Context()) }()
	remembers("edge", "led")
	reports.gone = p.forgetRoutes
	p.manager.Unfollow(theSandbox().UID)
	remembers("edge")
}
