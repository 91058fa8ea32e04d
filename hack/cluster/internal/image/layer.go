package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Entry is one file of an image: a copy of a local file, a symbolic link, or text.
type Entry struct {
	// Path is absolute, in the image.
	Path string
	// Source is copied, links in it followed. A directory is copied with everything in it.
	Source string
	// Link is the target of a symbolic link.
	Link string
	// Text is the content of a small file.
	Text string
}

// layerTar writes the entries, and every directory above them, sorted by path.
func layerTar(entries []Entry) ([]byte, error) {
	files, err := flatten(entries)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	seen := map[string]bool{"/": true}
	for _, dir := range []string{"/etc", "/tmp"} {
		if err := writeDirs(w, seen, dir); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		// Closures of several programs share most libraries.
		if seen[f.Path] {
			continue
		}
		seen[f.Path] = true
		if err := writeDirs(w, seen, path.Dir(f.Path)); err != nil {
			return nil, err
		}
		if err := writeEntry(w, f); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("finish the layer: %w", err)
	}
	return buf.Bytes(), nil
}

// flatten replaces directories by the files in them.
func flatten(entries []Entry) ([]Entry, error) {
	var files []Entry
	for _, e := range entries {
		if e.Source == "" {
			files = append(files, e)
			continue
		}
		source, err := filepath.EvalSymlinks(e.Source)
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", e.Source, err)
		}
		err = filepath.WalkDir(source, func(p string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files = append(files, Entry{Path: path.Join(e.Path, strings.TrimPrefix(p, source)), Source: p})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", e.Source, err)
		}
	}
	slices.SortStableFunc(files, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// writeDirs writes parents first and each directory once, as the archive's readers expect.
func writeDirs(w *tar.Writer, seen map[string]bool, dir string) error {
	if seen[dir] {
		return nil
	}
	seen[dir] = true
	if err := writeDirs(w, seen, path.Dir(dir)); err != nil {
		return err
	}
	mode := int64(0o755)
	if dir == "/tmp" {
		mode = 0o1777
	}
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode})
}

// writeEntry leaves owner and times at zero: root, and the epoch.
func writeEntry(w *tar.Writer, e Entry) error {
	h := &tar.Header{Name: strings.TrimPrefix(e.Path, "/")}
	switch {
	case e.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
		return w.WriteHeader(h)
	case e.Source == "":
		h.Typeflag, h.Mode, h.Size = tar.TypeReg, 0o644, int64(len(e.Text))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(w, e.Text)
		return err
	}
	return writeFile(w, h, e.Source)
}

// writeFile keeps the permission bits and nothing else of the local file.
func writeFile(w *tar.Writer, h *tar.Header, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Mode, h.Size = tar.TypeReg, int64(info.Mode().Perm()), info.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
