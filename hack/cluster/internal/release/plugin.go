package release

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// PluginName is the program's, by which kubectl finds it.
const PluginName = "kubectl-pod_network"

// maxPlugin bounds the program, which people download.
const maxPlugin = 40 << 20

// plugin is the plugin of kubectl for one platform.
type plugin struct {
	OS, Arch, Program string
	// Dir is the directory in the archive File.
	Dir, File, SHA256 string
}

// packPlugins packs the plugin for each platform, and fills in krew's manifest.
func (r Release) packPlugins() error {
	dirs, err := filepath.Glob(filepath.Join(r.Plugins, "*-*"))
	if err != nil || len(dirs) == 0 {
		return errors.Join(errors.New("no plugins in "+r.Plugins), err)
	}
	var all []plugin
	for _, dir := range dirs {
		p, err := r.packPlugin(dir)
		if err != nil {
			return fmt.Errorf("pack the plugin in %s: %w", dir, err)
		}
		all = append(all, p)
	}
	manifest, err := template.ParseFiles(r.Krew)
	if err != nil {
		return fmt.Errorf("read krew's manifest: %w", err)
	}
	return writeFile(filepath.Join(r.Output, "pod-network.yaml"), func(to io.Writer) error {
		return manifest.Execute(to, map[string]any{"Version": r.Version, "URL": r.URL, "Platforms": all})
	})
}

// packPlugin packs the plugin in a directory OS-ARCHITECTURE: as a zip for Windows.
func (r Release) packPlugin(dir string) (plugin, error) {
	var p plugin
	p.OS, p.Arch, _ = strings.Cut(filepath.Base(dir), "-")
	p.Program, p.Dir = PluginName, PluginName+"-"+r.Version+"-"+p.OS+"-"+p.Arch
	write, suffix, shim := writeTarGz, ".tar.gz", entry{p.Dir + "/kubectl_complete-pod_network", 0o755, []byte("#!/bin/sh\nexec kubectl-pod_network __complete \"$@\"\n")}
	if p.OS == "windows" {
		p.Program += ".exe"
		write, suffix, shim = writeZip, ".zip", entry{p.Dir + "/kubectl_complete-pod_network.cmd", 0o755, []byte("@kubectl-pod_network __complete %*\r\n")}
	}
	p.File = p.Dir + suffix
	program, err := os.ReadFile(filepath.Join(dir, p.Program))
	switch {
	case err != nil:
		return p, err
	case len(program) > maxPlugin:
		return p, fmt.Errorf("%s has %d bytes: want %d at most", p.Program, len(program), maxPlugin)
	}
	entries := []entry{{p.Dir + "/" + p.Program, 0o755, program}, shim}
	for _, document := range r.Documents {
		content, err := os.ReadFile(document)
		if err != nil {
			return p, err
		}
		entries = append(entries, entry{p.Dir + "/" + filepath.Base(document), 0o644, content})
	}
	file := filepath.Join(r.Output, p.File)
	if err := write(file, entries, r.Time); err != nil {
		return p, err
	}
	p.SHA256, err = sumOf(file)
	return p, err
}

// writeZip writes an archive as Windows opens it, with one time for all.
func writeZip(file string, entries []entry, at time.Time) error {
	return writeFile(file, func(to io.Writer) error {
		z := zip.NewWriter(to)
		for _, e := range entries {
			h := &zip.FileHeader{Name: e.path, Method: zip.Deflate, Modified: at.UTC()}
			h.SetMode(os.FileMode(e.mode))
			w, err := z.CreateHeader(h)
			if err != nil {
				return err
			}
			if _, err := io.Copy(w, bytes.NewReader(e.content)); err != nil {
				return err
			}
		}
		return z.Close()
	})
}
