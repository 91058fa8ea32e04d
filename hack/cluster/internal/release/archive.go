package release

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// entry is one file of an archive.
type entry struct {
	path    string
	mode    int64
	content []byte
}

// maxFile bounds a file of a chart.
const maxFile = 16 << 20

// writeTar writes files in the order of their paths, owned by root, with one time for all.
func writeTar(to io.Writer, entries []entry, at time.Time) error {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	w := tar.NewWriter(to)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: e.mode, Size: int64(len(e.content)), ModTime: at.UTC(), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("pack %s: %w", e.path, err)
		}
		if _, err := w.Write(e.content); err != nil {
			return fmt.Errorf("pack %s: %w", e.path, err)
		}
	}
	return w.Close()
}

// writeTarGz writes a compressed archive, without name and time in the compression's own header.
func writeTarGz(file string, entries []entry, at time.Time) error {
	return writeFile(file, func(to io.Writer) error {
		z := gzip.NewWriter(to)
		return errors.Join(writeTar(z, entries, at), z.Close())
	})
}

// writeFile makes a file whole or not at all.
func writeFile(file string, fill func(io.Writer) error) error {
	partial := file + ".partial"
	f, err := os.Create(partial)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", file, err), os.Remove(partial))
	}
	return os.Rename(partial, file)
}

// repack writes a compressed archive again, without what depends on when and by whom it was made: `helm package` puts the present time
// into it.
func repack(from, to string, at time.Time) error {
	entries, err := readTarGz(from)
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	return writeTarGz(to, entries, at)
}

func readTarGz(file string) ([]entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxFile {
			return nil, fmt.Errorf("%s: want files of at most %d bytes", h.Name, maxFile)
		}
		content, err := io.ReadAll(io.LimitReader(r, maxFile))
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{h.Name, 0o644, content})
	}
}
