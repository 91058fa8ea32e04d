package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// archive packs the files of a directory: as .zip, as .tar, or else as a compressed tar. In a .tar, which is an OCI layout, nothing is executable.
func archive(file, dir string, at time.Time) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	switch filepath.Ext(file) {
	case ".zip":
		z := zip.NewWriter(out)
		return errors.Join(each(dir, 0o100, func(path string, mode fs.FileMode, content []byte) error {
			h := &zip.FileHeader{Name: path, Method: zip.Deflate, Modified: at.UTC()}
			h.SetMode(mode)
			return write(content)(z.CreateHeader(h))
		}), z.Close())
	case ".tar":
		return writeTar(out, dir, 0, at)
	}
	z := gzip.NewWriter(out) // without name and time in its own header
	return errors.Join(writeTar(z, dir, 0o100, at), z.Close())
}

func writeTar(to io.Writer, dir string, executable fs.FileMode, at time.Time) error {
	w := tar.NewWriter(to)
	return errors.Join(each(dir, executable, func(path string, mode fs.FileMode, content []byte) error {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: int64(mode), Size: int64(len(content)), ModTime: at.UTC(), Format: tar.FormatUSTAR}
		return write(content)(w, w.WriteHeader(h))
	}), w.Close())
}

// write returns a function that writes content, unless there was an error.
func write(content []byte) func(to io.Writer, err error) error {
	return func(to io.Writer, err error) error {
		if err == nil {
			_, err = to.Write(content)
		}
		return err
	}
}

// each calls f for each file below a directory, which has at least one: by path, and with one of two modes, as it has a bit or not.
func each(dir string, executable fs.FileMode, f func(path string, mode fs.FileMode, content []byte) error) error {
	found := false
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found = true
		content, errContent := os.ReadFile(filepath.Join(dir, path))
		info, err := d.Info()
		if err := errors.Join(errContent, err); err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&executable != 0 {
			mode = 0o755
		}
		return f(path, mode, content)
	})
	if err == nil && !found {
		err = fmt.Errorf("no file in %s", dir)
	}
	return err
}
