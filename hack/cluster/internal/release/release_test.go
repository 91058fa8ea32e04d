package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// sample makes what Pack wants, with programs that consist of a header.
func sample(t *testing.T) Release {
	t.Helper()
	dir := t.TempDir()
	r := Release{
		Name: "agent", Version: "1.2.3-dev+abc", Revision: "abcdef", Time: time.Unix(1700000000, 0),
		Programs: filepath.Join(dir, "programs"), Chart: filepath.Join(dir, "agent-1.2.3-dev+abc.tgz"), Output: filepath.Join(dir, "out"),
		Documents: []string{write(t, filepath.Join(dir, "LICENSE"), "free")},
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		for _, program := range []string{"agent", "probe"} {
			write(t, filepath.Join(r.Programs, arch, program), static(t, machine)+program)
		}
	}
	chart(t, r.Chart, time.Unix(1, 0), "agent/templates/a.yaml", "agent/Chart.yaml")
	r.SBOMs = filepath.Join(dir, "sboms")
	sbom(t, r.SBOMs, "2026-01-01T00:00:00Z", "abc")
	return r
}

// sbom writes one as cyclonedx-gomod does: with the time of day, and its own checksum.
func sbom(t *testing.T, dir, at, sum string) {
	t.Helper()
	write(t, filepath.Join(dir, "agent.cdx.json"),
		`{"metadata": {"timestamp": "`+at+`", "tools": [{"name": "x", "version": "v1", "hashes": [{"alg": "MD5", "content": "`+sum+`"}]}]}, "components": [{"name": "<a>"}]}`)
}

// static returns the header of a program that needs no libraries.
func static(t *testing.T, machine elf.Machine) string {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	var buf bytes.Buffer
	if err := binary.Write(&buf, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// chart writes an archive as helm does: in its own order, with the time of day.
func chart(t *testing.T, file string, at time.Time, files ...string) {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	z.ModTime, z.Comment = at, "Helm"
	w := tar.NewWriter(z)
	for _, name := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(name)), ModTime: at}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, file, buf.String())
}

func TestPackMakesTheSameReleaseAgain(t *testing.T) {
	r := sample(t)
	if err := r.Pack(); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(r.Output, SumsFile))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(first)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		names = append(names, name)
	}
	want := []string{"agent-1.2.3-dev+abc-image.oci.tar", "agent-1.2.3-dev+abc-linux-amd64.tar.gz", "agent-1.2.3-dev+abc-linux-arm64.tar.gz", "agent-1.2.3-dev+abc.tgz", ProvenanceFile, "sbom/agent.cdx.json"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	// Another day, another directory, another machine.
	again := r
	sbom(t, r.SBOMs, "2027-01-01T00:00:00Z", "def")
	again.Output = filepath.Join(t.TempDir(), "elsewhere")
	chart(t, r.Chart, time.Unix(99, 0), "agent/Chart.yaml", "agent/templates/a.yaml")
	if err := again.Pack(); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(filepath.Join(again.Output, SumsFile))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(first), string(second)); diff != "" {
		t.Errorf("(-first +second)\n%s", diff)
	}
}

func TestFilesHaveTheTimeOfTheCommit(t *testing.T) {
	r := sample(t)
	if err := r.Pack(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agent-1.2.3-dev+abc-linux-arm64.tar.gz", "agent-1.2.3-dev+abc.tgz"} {
		f, err := os.Open(filepath.Join(r.Output, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if !z.ModTime.IsZero() || z.Comment != "" {
			t.Errorf("%s: the compression's header has %s %q", name, z.ModTime, z.Comment)
		}
		files := tar.NewReader(z)
		for h, err := files.Next(); !errors.Is(err, io.EOF); h, err = files.Next() {
			if err != nil {
				t.Fatal(err)
			}
			if !h.ModTime.Equal(r.Time) || h.Uid != 0 || h.Uname != "" {
				t.Errorf("%s: %s is of %s and user %d %q", name, h.Name, h.ModTime, h.Uid, h.Uname)
			}
		}
	}
}

func TestImageHasBothPlatforms(t *testing.T) {
	r := sample(t)
	if err := r.Pack(); err != nil {
		t.Fatal(err)
	}
	dir := unpack(t, filepath.Join(r.Output, "agent-1.2.3-dev+abc"+ImageSuffix))
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	if got := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "1.2.3-dev-abc" {
		t.Errorf("the index is named %q", got)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err = index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		platforms = append(platforms, m.Platform.String()+" "+config.Architecture)
		if config.Created.Unix() != r.Time.Unix() || config.Config.Labels["org.opencontainers.image.version"] != r.Version || config.Config.Labels["org.opencontainers.image.revision"] != r.Revision {
			t.Errorf("%s: created %s, labels %v", m.Platform, config.Created, config.Config.Labels)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64 amd64", "linux/arm64 arm64"}, platforms); diff != "" {
		t.Error(diff)
	}
}

func unpack(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, h.Name), string(content)) //nolint:gosec // an archive of this test
	}
}

func TestPackRefusesWhatIsNoRelease(t *testing.T) {
	cases := map[string]struct {
		spoil func(t *testing.T, r *Release)
		want  string
	}{
		"a program that is none": {func(t *testing.T, r *Release) {
			t.Helper()
			write(t, filepath.Join(r.Programs, "arm64", "agent"), "#!/bin/sh\n")
		}, "is no Linux program"},
		"an architecture without the agent": {func(t *testing.T, r *Release) {
			t.Helper()
			if err := os.Remove(filepath.Join(r.Programs, "arm64", "agent")); err != nil {
				t.Fatal(err)
			}
		}, "no program agent for arm64"},
		"no programs": {func(t *testing.T, r *Release) {
			t.Helper()
			r.Programs = t.TempDir()
		}, "no programs in"},
		"an SBOM with a serial number": {func(t *testing.T, r *Release) {
			t.Helper()
			write(t, filepath.Join(r.SBOMs, "x.json"), `{"serialNumber": "1", "metadata": {"tools": []}}`)
		}, "differs each time"},
		"no SBOM": {func(t *testing.T, r *Release) {
			t.Helper()
			r.SBOMs = t.TempDir()
		}, "no SBOM in"},
		"a chart that is none": {func(t *testing.T, r *Release) {
			t.Helper()
			write(t, r.Chart, "x")
		}, "read "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := sample(t)
			tc.spoil(t, &r)
			if err := r.Pack(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}
