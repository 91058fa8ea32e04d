package rollout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"

	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/profile"
)

const (
	// goodSuffix ends the name of a profile's file.
	goodSuffix = ".json"
	// earlierVersions is how many good versions before the last one are remembered.
	earlierVersions = 3
)

// Good remembers the last version of each profile that became ready on the node: proxies are made from it until the present version has
// become ready as well. It is also written to a file, for the next agent: also after a start of the node, when all pods need proxies.
type Good struct {
	// Dir is the directory of the files.
	Dir string
	mu  sync.Mutex
	by  map[string]*goodVersion // by profile
}

type goodVersion struct {
	Spec profile.Spec `json:"spec"`
	// Earlier are the good versions before it, newest first: until all proxies are upgraded some are of these.
	Earlier []profile.Spec `json:"earlier,omitempty"`
	// Istio is what the last ready proxy of a profile with istio was computed of.
	Istio *istio.Sources `json:"istio,omitempty"`
	// Failed is the hash of the version that failed last in the place of one of this version, or "".
	Failed string `json:"failed,omitempty"`

	hash string
	// usable is this version with what the profile beside says of the rest; nil if it cannot be used. So are the earlier ones that can.
	usable, beside *profile.Version
	earlier        []*profile.Version
}

// Before returns the last good version, or nil if that is the present one or is not known, and the good ones before that.
// presentFailed reports whether the present one has failed in the place of the good one.
func (g *Good) Before(p *profile.Version) (good *profile.Version, earlier []*profile.Version, presentFailed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.of(p.Name)
	if known.hash == "" {
		return nil, nil, false
	}
	if known.beside != p {
		known.usable, known.earlier, known.beside = p.WithSpec(known.Spec), nil, p
		for i := range known.Earlier {
			if one := p.WithSpec(known.Earlier[i]); one != nil {
				known.earlier = append(known.earlier, one)
			}
		}
	}
	if known.hash == p.Hash {
		return nil, known.earlier, false
	}
	return known.usable, known.earlier, known.Failed == p.Hash
}

// Last returns the last good version of a profile, nil if none is known.
func (g *Good) Last(name string) *profile.Spec {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.of(name)
	if known.hash == "" {
		return nil
	}
	return &known.Spec
}

// Works notes that a proxy of the present version has become ready.
func (g *Good) Works(p *profile.Version) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.of(p.Name)
	if known.hash == p.Hash {
		return nil
	}
	next := &goodVersion{Spec: p.Spec, Istio: known.Istio, hash: p.Hash}
	if known.hash != "" {
		next.Earlier = slices.Insert(known.Earlier[:min(len(known.Earlier), earlierVersions-1)], 0, known.Spec)
	}
	g.by[p.Name] = next
	return g.write(p.Name)
}

// Computed notes from what a proxy of a profile with istio was computed that has become ready.
func (g *Good) Computed(profile string, from *istio.Sources) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.of(profile)
	if known.hash == "" || known.Istio != nil && equality.Semantic.DeepEqual(known.Istio, from) {
		return nil
	}
	known.Istio = from
	return g.write(profile)
}

// Istio returns what the last ready proxy of a profile was computed from, nil if that is not known, or was of another control plane.
func (g *Good) Istio(name string, of istio.ControlPlane) *istio.Sources {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.of(name).Istio; known != nil && known.Of == of {
		return known
	}
	return nil
}

// Fails notes that a proxy of the present version has failed.
func (g *Good) Fails(p *profile.Version) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.of(p.Name)
	if known.hash == "" || known.Failed == p.Hash {
		return nil
	}
	known.Failed = p.Hash
	return g.write(p.Name)
}

// Forget forgets a profile that is gone. With the last file goes the directory.
func (g *Good) Forget(profile string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.by, profile)
	err := os.RemoveAll(g.path(profile))
	_ = os.Remove(g.Dir) // unless there are others
	return err
}

// Profiles returns the names of the profiles of which a version is known to work.
func (g *Good) Profiles() (out []string) {
	entries, _ := os.ReadDir(g.Dir) // without one there are none
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), goodSuffix); ok {
			out = append(out, name)
		}
	}
	return out
}

// of returns what is remembered of a profile, or was by an earlier agent. A file that cannot be read counts as none. g.mu is held.
func (g *Good) of(name string) *goodVersion {
	if known := g.by[name]; known != nil {
		return known
	}
	known, err := home.ReadFile[goodVersion](g.path(name))
	if err == nil {
		known.hash = known.Spec.Hash()
	}
	if g.by == nil {
		g.by = map[string]*goodVersion{}
	}
	g.by[name] = &known
	return &known
}

// write replaces a profile's file. If that fails the old one is removed: no version is better than an outdated one. g.mu is held.
func (g *Good) write(profile string) error {
	path := g.path(profile)
	err := os.MkdirAll(g.Dir, 0o700)
	if err == nil {
		err = home.ReplaceFile(path, g.by[profile])
	}
	if err != nil {
		return errors.Join(fmt.Errorf("note the version of a profile that works: %w", err), os.RemoveAll(path))
	}
	return nil
}

// path is a profile's file. The API server takes no name of a profile with a slash.
func (g *Good) path(profile string) string {
	return filepath.Join(g.Dir, filepath.Base(profile)+goodSuffix)
}
