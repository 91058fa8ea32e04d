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
	"regexp"
	"strings"

	"istio-pod-network-controller/hack/cluster/internal/layout"
)

// Release is a container runtime that is built from its own module, which pins what it is made of, instead of from the cluster's pins.
type Release struct {
	name, module, version string
	recipes               []Recipe
	tags, ldflags         string
	// staged says that the module's own pins lead to directories that are modules of their own: it cannot be built where it is downloaded.
	staged bool
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

// Kubernetes is a release of Kubernetes, such as 1.35.4. Its programs are built by the versions that the release itself pins.
func Kubernetes(version string) Release {
	return Release{name: "kubernetes", module: kubernetesModule, version: "v" + version, tags: tags, recipes: kubernetesRecipes(), ldflags: stamp("v" + version), staged: true}
}

// OpenRelease says where a release's programs are. It builds nothing, but may download the module.
func OpenRelease(ctx context.Context, l layout.Layout, r Release) (Set, error) {
	cmd := anyGo(goCommand(ctx, "/", "mod", "download", "-json", r.module+"@"+r.version))
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if errDecode := json.Unmarshal(out, &module); errDecode != nil || module.Error != "" || module.Dir == "" {
		return Set{}, fmt.Errorf("download %s %s: %w: %s", r.module, r.version, errors.Join(err, errDecode), module.Error)
	}
	compiler, err := goVersion(anyGo(goCommand(ctx, module.Dir, "env", "GOVERSION")))
	if err != nil {
		return Set{}, err
	}
	s := Set{recipes: r.recipes, native: r.native, pins: module.Dir, tags: r.tags, ldflags: strings.TrimSpace("-s -w " + r.ldflags)}
	k, err := key(compiler+" "+r.tags, s.ldflags, s.recipes, s.pins)
	s.Dir = filepath.Join(l.Cache, r.name+"-"+strings.TrimPrefix(r.version, "v")+"-"+k)
	if err == nil && r.staged {
		s.pins, s.written = s.Dir+"-module", true
		err = unstage(module.Dir, s.pins, r)
	}
	return s, err
}

// unstage writes a module with the pins of a release of Kubernetes, for which its repository has directories: what is staged there is
// published as modules, of version 0.35.4 for Kubernetes 1.35.4.
func unstage(from, dir string, r Release) error {
	mod, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		return fmt.Errorf("read the pins of %s %s: %w", r.module, r.version, err)
	}
	sum, err := os.ReadFile(filepath.Join(from, "go.sum"))
	if err != nil {
		return fmt.Errorf("read the pins of %s %s: %w", r.module, r.version, err)
	}
	text := stagedPath.ReplaceAllString(string(mod), "=> $1 v0"+strings.TrimPrefix(r.version, "v1"))
	text = strings.Replace(text, "module "+r.module, "module release", 1) + "\nrequire " + r.module + " " + r.version + "\n"
	err = os.MkdirAll(dir, 0o755)
	if _, there := os.Stat(filepath.Join(dir, "go.mod")); there == nil {
		return err // go adds to it what a build needs
	}
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644), os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644))
}

// stagedPath is a directory of the Kubernetes repository that is published as a module.
var stagedPath = regexp.MustCompile(`=> \./staging/src/(\S+)`)

// Borrow has a directory of programs have those of another one, too, that it has not itself.
func (s Set) Borrow(from string) error {
	others, err := os.ReadDir(from)
	for _, other := range others {
		link := filepath.Join(s.Dir, other.Name())
		if _, there := os.Stat(link); there == nil {
			continue
		}
		err = errors.Join(err, os.RemoveAll(link), os.Symlink(filepath.Join(from, other.Name()), link))
	}
	if err != nil {
		return fmt.Errorf("link the other programs: %w", err)
	}
	return nil
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
