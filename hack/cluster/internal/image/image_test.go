package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestWrittenImageHoldsConfigAndFiles(t *testing.T) {
	dir := t.TempDir()
	program := writeFileMode(t, filepath.Join(dir, "program"), "binary", 0o755)
	file := filepath.Join(dir, "out", "image.tar")
	spec := Spec{
		Tag: "localhost/agent:1", Entrypoint: []string{"/bin/agent", "run"}, User: "1337:1337", StopSignal: "SIGUSR1",
		Entries: []Entry{{Path: "/bin/agent", Source: program}, {Path: "/etc/hosts", Text: "127.0.0.1 localhost\n"}, {Path: "/agent", Link: "bin/agent"}},
	}
	if err := Write(file, spec); err != nil {
		t.Fatal(err)
	}
	if got, err := NameIn(file); got != spec.Tag {
		t.Errorf("the archive's name is %q, %v", got, err)
	}
	tag, err := name.NewTag(spec.Tag)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec.Entrypoint, config.Config.Entrypoint); diff != "" || config.Config.User != spec.User || config.Config.StopSignal != spec.StopSignal || config.OS != "linux" {
		t.Errorf("config %+v", config.Config)
	}
	want := map[string]string{
		"agent": "-> bin/agent", "bin": "dir 0755", "bin/agent": "0755 binary", "etc": "dir 0755",
		"etc/hosts": "0644 127.0.0.1 localhost\n", "tmp": "dir 1777",
	}
	content := mutate.Extract(img)
	defer content.Close()
	if diff := cmp.Diff(want, listing(t, content)); diff != "" {
		t.Error(diff)
	}
}

func TestEqualInputGivesEqualBytes(t *testing.T) {
	dir := t.TempDir()
	program := writeFileMode(t, filepath.Join(dir, "program"), "binary", 0o755)
	pack := func(file string, entries ...Entry) []byte {
		if err := Write(file, Spec{Tag: "localhost/x:1", Entries: entries}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	a, b := Entry{Path: "/a", Source: program}, Entry{Path: "/b", Text: "b"}
	if !bytes.Equal(pack(filepath.Join(dir, "1.tar"), a, b), pack(filepath.Join(dir, "2.tar"), b, a)) {
		t.Error("the order of the entries changes the image")
	}
}

func TestDirectoryIsPackedWithItsFilesAndLinksFollowed(t *testing.T) {
	dir := t.TempDir()
	writeFileMode(t, filepath.Join(dir, "sub", "lib.so"), "lib", 0o644)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	layer, err := layerTar([]Entry{{Path: "/usr/lib", Source: link}})
	if err != nil {
		t.Fatal(err)
	}
	if got := listing(t, bytes.NewReader(layer))["usr/lib/sub/lib.so"]; got != "0644 lib" {
		t.Errorf("got %q", got)
	}
}

func TestWrongInputIsNamed(t *testing.T) {
	dir := t.TempDir()
	for name, spec := range map[string]Spec{
		"tag without a version": {Tag: "agent"},
		"missing file":          {Tag: "localhost/x:1", Entries: []Entry{{Path: "/a", Source: filepath.Join(dir, "none")}}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "out.tar")
			if err := Write(file, spec); err == nil {
				t.Error("no error")
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("an image was written: %v", err)
			}
		})
	}
}

func TestCheckStatic(t *testing.T) {
	if err := CheckStatic("/bin/sh"); !errors.Is(err, errDynamic) {
		t.Errorf("a dynamic program: %v", err)
	}
	text := writeFileMode(t, filepath.Join(t.TempDir(), "script"), "#!/bin/sh\n", 0o755)
	if err := CheckStatic(text); err == nil || errors.Is(err, errDynamic) {
		t.Errorf("a script: %v", err)
	}
}

func TestLibrariesAreReadFromLddsLines(t *testing.T) {
	got, err := libraries("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
	if diff := cmp.Diff([]string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := libraries("\tlibx.so => not found\n"); err == nil || !strings.Contains(err.Error(), "libx.so") {
		t.Errorf("missing library: %v", err)
	}
}

func listing(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		mode := fmt.Sprintf("%04o", h.Mode)
		switch h.Typeflag {
		case tar.TypeDir:
			files[h.Name] = "dir " + mode
		case tar.TypeSymlink:
			files[h.Name] = "-> " + h.Linkname
		default:
			files[h.Name] = mode + " " + string(content)
		}
	}
}

func writeFileMode(t *testing.T, file, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return file
}
