package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func sample() release {
	return release{name: "agent", version: "1.2.3-dev+abc", revision: "abcdef", at: time.Unix(1700000000, 0)}
}

func put(t *testing.T, mode os.FileMode, text string, parts ...string) {
	t.Helper()
	file := filepath.Join(parts...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
		t.Fatal(err)
	}
}

// entry is a file of an archive.
type entry struct{ path, mode, content string }

// unpack returns the files of an archive, which all have the commit's time.
func unpack(t *testing.T, file string) (files []entry) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	add := func(info os.FileInfo, path string, in io.Reader) {
		content, err := io.ReadAll(in)
		if err != nil || !info.ModTime().Equal(sample().at) {
			t.Errorf("%s: %v, of %s", path, err, info.ModTime())
		}
		files = append(files, entry{path, info.Mode().String(), string(content)})
	}
	if filepath.Ext(file) == ".zip" {
		z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			add(f.FileInfo(), f.Name, in)
		}
		return files
	}
	untar(t, bytes.NewReader(raw), filepath.Ext(file) == ".gz", add)
	return files
}

// untar calls add for each file, which all belong to root.
func untar(t *testing.T, in io.Reader, compressed bool, add func(info os.FileInfo, path string, in io.Reader)) {
	t.Helper()
	if compressed {
		z, err := gzip.NewReader(in)
		if err != nil || !z.ModTime.IsZero() {
			t.Fatalf("%v: the compression's header has %s", err, z.ModTime)
		}
		in = z
	}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil || h.Uid != 0 || h.Uname != "" {
			t.Fatalf("%v: %+v", err, h)
		}
		add(h.FileInfo(), h.Name, r)
	}
}

func TestArchive_anotherDayAndUmask_sameBytes(t *testing.T) {
	for name, mode := range map[string]string{"x.zip": "-rwxr-xr-x", "x.tar": "-rw-r--r--", "x.tar.gz": "-rwxr-xr-x"} {
		var packed []string
		for i, umask := range []os.FileMode{0o077, 0o022} {
			dir, file := t.TempDir(), filepath.Join(t.TempDir(), name)
			put(t, 0o777&^umask, "program", dir, "x", "tool")
			put(t, 0o666&^umask, "text", dir, "x", "a", "z")
			if err := errors.Join(os.Chtimes(filepath.Join(dir, "x/tool"), time.Time{}, time.Unix(int64(i), 0)), archive(file, dir, sample().at)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]entry{{"x/a/z", "-rw-r--r--", "text"}, {"x/tool", mode, "program"}}, unpack(t, file), cmp.AllowUnexported(entry{})); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			packed = append(packed, string(raw))
		}
		if packed[0] != packed[1] {
			t.Errorf("%s: the second has other bytes", name)
		}
	}
}

// programs makes those of a release: headers of programs that need no libraries.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
		copy(h.Ident[:], elf.ELFMAG)
		h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
		var header bytes.Buffer
		if err := binary.Write(&header, binary.LittleEndian, h); err != nil {
			t.Fatal(err)
		}
		put(t, 0o755, header.String()+"agent", dir, arch, "agent")
		put(t, 0o755, header.String()+"probe", dir, arch, "probe")
	}
	return dir
}

func TestImage_hasAllPlatforms(t *testing.T) {
	r, file, dir := sample(), filepath.Join(t.TempDir(), "image.oci.tar"), t.TempDir()
	if err := r.writeImage(file, programs(t)); err != nil {
		t.Fatal(err)
	}
	for _, e := range unpack(t, file) {
		put(t, 0o600, e.content, dir, e.path)
	}
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3-dev-abc" {
		t.Fatalf("%+v, %v", manifest, err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
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
		platforms = append(platforms, fmt.Sprint(m.Platform, " ", config.Architecture))
		if config.Created.Unix() != r.at.Unix() || config.Config.Labels["org.opencontainers.image.version"] != r.version || config.Config.Labels["org.opencontainers.image.revision"] != r.revision {
			t.Errorf("%s: created %s, labels %v", m.Platform, config.Created, config.Config.Labels)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64 amd64", "linux/arm64 arm64"}, platforms); diff != "" {
		t.Error(diff)
	}
}
