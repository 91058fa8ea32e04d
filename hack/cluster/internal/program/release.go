package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/hack/cluster/internal/layout"
)

// Release is a container runtime that is built from its own module, which pins what it is made of, instead of from the cluster's pins.
type Release struct {
	name, module, version string
	recipes               []Recipe
	tags                  string
	// native holds, by the file that it becomes, the directory of a C program's sources below the module.
	native map[string]string
}

// CRIO is the release of CRI-O that the cluster can run: the runtime, what fills its image store, and what makes its namespaces.
func CRIO() Release {
	const module = "github.com/cri-o/cri-o"
	return Release{
		name: "crio", module: module, version: "v1.36.3",
		recipes: []Recipe{
			{Output: "crio", Package: module + "/cmd/crio", Cgo: true},
			{Output: "copyimg", Package: module + "/test/copyimg", Cgo: true},
		},
		// Signatures are checked without gpgme, and images are stored without btrfs: fewer C libraries.
		tags:   tags + ",containers_image_openpgp,exclude_graphdriver_btrfs",
		native: map[string]string{"pinns": "pinns/src"},
	}
}

// Containerd is a release of containerd, such as 1.7.35, with its shim and its tool.
func Containerd(version string) Release {
	module := "github.com/containerd/containerd/v2"
	if strings.HasPrefix(version, "1.") {
		module = strings.TrimSuffix(module, "/v2")
	}
	r := Release{name: "containerd", module: module, version: "v" + version, tags: tags}
	for _, command := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		r.recipes = append(r.recipes, Recipe{Output: command, Package: module + "/cmd/" + command})
	}
	return r
}

// OpenRelease says where a release's programs are. It builds nothing, but may download the module.
func OpenRelease(ctx context.Context, l layout.Layout, r Release) (Set, error) {
	cmd := goCommand(ctx, "/", "mod", "download", "-json", r.module+"@"+r.version)
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if errDecode := json.Unmarshal(out, &module); errDecode != nil || module.Error != "" || module.Dir == "" {
		return Set{}, fmt.Errorf("download %s %s: %w: %s", r.module, r.version, errors.Join(err, errDecode), module.Error)
	}
	compiler, err := goVersion(ctx, "/")
	if err != nil {
		return Set{}, err
	}
	s := Set{recipes: r.recipes, native: r.native, pins: module.Dir, tags: r.tags, ldflags: "-s -w"}
	k, err := key(compiler+" "+r.tags, s.ldflags, s.recipes, s.pins)
	s.Dir = filepath.Join(l.Cache, r.name+"-"+strings.TrimPrefix(r.version, "v")+"-"+k)
	return s, err
}

// buildNative compiles the C programs that are missing. They want no library but the C compiler's own.
func (s Set) buildNative(ctx context.Context, out io.Writer) error {
	for name, dir := range s.native {
		target := filepath.Join(s.Dir, name)
		if _, err := os.Stat(target); err == nil {
			continue
		}
		sources, err := filepath.Glob(filepath.Join(s.pins, dir, "*.c"))
		if err == nil && len(sources) == 0 {
			err = errors.New("no C sources in " + dir)
		}
		if err = errors.Join(err, os.MkdirAll(s.Dir, 0o755)); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
		fmt.Fprintf(out, "compiling %s\n", name)
		cmd := exec.CommandContext(ctx, "gcc", append([]string{"-std=c99", "-O2", "-s", "-o", target + ".partial"}, sources...)...)
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, tail(string(said), 30))
		}
		if err := os.Rename(target+".partial", target); err != nil {
			return fmt.Errorf("keep %s: %w", name, err)
		}
	}
	return nil
}
