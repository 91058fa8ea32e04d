package rollout

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
)

// mustRemember wants the first version remembered, and usable in the place of the present one or not.
func mustRemember(t *testing.T, g *Good, present *profile.Version, usable bool) {
	t.Helper()
	good, _, fails := g.Before(present)
	if fails || (good != nil) != usable || good != nil && (good.Spec.Image != "haproxy:1" || good.Spec.Rollout.DrainSeconds != present.Spec.Rollout.DrainSeconds) {
		t.Errorf("%+v, %t", good, fails)
	}
}

// What was remembered is used in the place of any other version of the profile: rules follow the proxy.
func TestBefore_versions_areRememberedIfUsable(t *testing.T) {
	compiled := func(change func(*profile.Spec)) *profile.Version {
		spec := profile.Spec{
			Image: "haproxy:2", Rollout: v1alpha1.Rollout{DrainSeconds: 45}, RunAsUser: int64(os.Getuid()), RunAsGroup: int64(os.Getgid()),
			Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006},
		}
		change(&spec)
		p, err := profile.New("edge", spec)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, c := range map[string]struct {
		present *profile.Version
		usable  bool
	}{
		"another image":     {compiled(func(s *profile.Spec) { s.Rollout.DrainSeconds = 7 }), true},
		"the same version":  {compiled(func(s *profile.Spec) { s.Image = "haproxy:1" }), false},
		"another user":      {compiled(func(s *profile.Spec) { s.RunAsUser++ }), true},
		"another port":      {compiled(func(s *profile.Spec) { s.Network.OutboundPort++ }), true},
		"it is transparent": {compiled(func(s *profile.Spec) { s.Transparent = true }), true},
		"another profile":   {&profile.Version{Name: "other", Hash: "h"}, false},
		"that is shared":    {compiled(func(s *profile.Spec) { s.Shared = &profile.Reload{} }), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g := &Good{Dir: dir}
			if err := g.Works(compiled(func(s *profile.Spec) { s.Image = "haproxy:1" })); err != nil {
				t.Fatal(err)
			}
			mustRemember(t, g, c.present, c.usable)
			mustRemember(t, &Good{Dir: dir}, c.present, c.usable) // the next agent's
			if err := g.Fails(c.present); err != nil {
				t.Fatal(err)
			}
			if good, _, fails := (&Good{Dir: dir}).Before(c.present); good != nil && !fails {
				t.Error("the next agent does not know that the present version has failed")
			}
		})
	}
}

func TestGoodVersions_files_areTidied(t *testing.T) {
	g, p := &Good{Dir: filepath.Join(t.TempDir(), "profiles")}, version("v1", nil)
	for range 2 {
		if err := g.Works(p); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.Profiles(); !slices.Equal(got, []string{"edge"}) {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(g.path("broken"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if good, _, _ := g.Before(&profile.Version{Name: "broken", Hash: "h"}); good != nil {
		t.Errorf("from a broken file: %+v", good)
	}
	if err := errors.Join(g.Forget("broken"), g.Forget("edge"), g.Forget("none")); err != nil || len(g.Profiles()) > 0 {
		t.Errorf("%q are left, %v", g.Profiles(), err)
	}
}

// What cannot be written is not left as it was.
func TestWorks_noRoom_removesOutdatedFile(t *testing.T) {
	g := &Good{Dir: t.TempDir()}
	first, second := &profile.Version{Name: "edge", Hash: "1"}, &profile.Version{Name: "edge", Hash: "2"}
	if err := errors.Join(g.Works(first), os.Mkdir(g.path("edge")+".new", 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := g.Works(second); err == nil {
		t.Error("it says nothing")
	}
	if got := g.Profiles(); len(got) > 0 {
		t.Errorf("%q", got)
	}
}
