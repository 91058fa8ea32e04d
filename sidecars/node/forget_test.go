package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/rollout"
)

// Which version of a profile works is forgotten with the profile, also if that was deleted while no agent ran.
func TestForgetGone_profileDeleted_isForgotten(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "good")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"edge", "deleted"} {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &Proxies{
		cluster: newChoosing().read(t), statuses: &profileStatuses{},
		manager: &sidecars.Manager{Homes: home.Homes{Root: root}, Profiles: dir, Rollout: &rollout.Queue{}},
	}
	p.forgetGone(t.Context())
	if got := p.manager.Remembered(); !slices.Equal(got, []string{"edge"}) {
		t.Errorf("%q are remembered", got)
	}
}
