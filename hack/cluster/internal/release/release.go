// Package release packs what a release consists of: archives of the programs, one image index for all platforms, the chart, and the
// checksums of all of it. Equal input gives equal bytes: times are the release's own, and the order is by path.
package release

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/image"
)

// SumsFile has the checksum of every other file, as sha256sum reads it.
const SumsFile = "SHA256SUMS"

// Release is what to pack.
type Release struct {
	// Name is that of the product, of its main program and of its image.
	Name     string
	Version  string
	Revision string
	// Time is that of the commit. Everything in the release has it.
	Time time.Time
	// Programs is a directory with a directory for each architecture (Go's name), with the static programs.
	Programs string
	// Chart is the chart as `helm package` makes it; empty means none.
	Chart string
	// SBOMs is a directory with SBOMs as cyclonedx-gomod writes them; empty means none.
	SBOMs string
	// Plugins is a directory with a directory OS-ARCHITECTURE for each platform, with the plugin of kubectl; Krew is the template of its manifest, and
	// URL is where the release's files are published. Empty means none.
	Plugins, Krew, URL string
	// Source is the address of the repository, and Go the toolchain's version, for the provenance.
	Source, Go string
	// Documents are put into the archives, beside the programs.
	Documents []string
	// Output gets the files.
	Output string
}

// Pack writes the release.
func (r Release) Pack() error {
	architectures, err := r.architectures()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.Output, 0o755); err != nil {
		return fmt.Errorf("make the release's directory: %w", err)
	}
	for _, arch := range architectures {
		if err := r.archive(arch); err != nil {
			return err
		}
	}
	if err := r.writeImage(architectures); err != nil {
		return err
	}
	if r.Chart != "" {
		if err := repack(r.Chart, filepath.Join(r.Output, filepath.Base(r.Chart)), r.Time); err != nil {
			return err
		}
	}
	if r.SBOMs != "" {
		if err := r.writeSBOMs(); err != nil {
			return err
		}
	}
	if r.Plugins != "" {
		if err := r.packPlugins(); err != nil {
			return err
		}
	}
	if err := r.writeProvenance(); err != nil {
		return err
	}
	return r.writeSums()
}

// architectures lists the directories of Programs.
func (r Release) architectures() ([]string, error) {
	dirs, err := os.ReadDir(r.Programs)
	if err != nil {
		return nil, fmt.Errorf("list the programs: %w", err)
	}
	var found []string
	for _, d := range dirs {
		if d.IsDir() {
			found = append(found, d.Name())
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no programs in " + r.Programs)
	}
	return found, nil
}

// programs lists the programs for an architecture, by path, and refuses those that need libraries.
func (r Release) programs(arch string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(r.Programs, arch, "*"))
	if err != nil {
		return nil, fmt.Errorf("list the programs: %w", err)
	}
	for _, file := range files {
		if err := image.CheckStatic(file); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(files, filepath.Join(r.Programs, arch, r.Name)) {
		return nil, fmt.Errorf("no program %s for %s in %s", r.Name, arch, r.Programs)
	}
	return files, nil
}

// archive packs the programs for an architecture, with the documents.
func (r Release) archive(arch string) error {
	programs, err := r.programs(arch)
	if err != nil {
		return err
	}
	name := r.Name + "-" + r.Version + "-linux-" + arch
	var entries []entry
	for _, file := range slices.Concat(programs, r.Documents) {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		mode := int64(0o644)
		if slices.Contains(programs, file) {
			mode = 0o755
		}
		entries = append(entries, entry{name + "/" + filepath.Base(file), mode, content})
	}
	return writeTarGz(filepath.Join(r.Output, name+".tar.gz"), entries, r.Time)
}

// writeSums is last: it reads the release's directory.
func (r Release) writeSums() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, s := range sums {
		lines.WriteString(s.sum + "  " + s.name + "\n")
	}
	if err := os.WriteFile(filepath.Join(r.Output, SumsFile), []byte(lines.String()), 0o644); err != nil {
		return fmt.Errorf("write the checksums: %w", err)
	}
	return nil
}

// summed is a file below Output, with slashes.
type summed struct{ name, sum string }

// sums returns the checksum of each file but the checksums' own, by name.
func (r Release) sums() ([]summed, error) {
	var all []summed
	err := filepath.WalkDir(r.Output, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == SumsFile {
			return err
		}
		sum, err := sumOf(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.Output, path)
		all = append(all, summed{filepath.ToSlash(name), sum})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sum up the release: %w", err)
	}
	slices.SortFunc(all, func(a, b summed) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
