package cniinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxTries bounds how often a file is looked at again that others are writing.
const maxTries = 10

// Uninstall takes the entry out of every list that holds it. A file that nobody else has changed since is then, byte for
// byte, what it was. The binary stays: runtimes call it once more for every sandbox that was made with it.
func (i *Installer) Uninstall() error {
	entries, err := os.ReadDir(i.config.ConfDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() || filepath.Ext(e.Name()) != listSuffix {
			continue
		}
		path := filepath.Join(i.config.ConfDir, e.Name())
		err := errChanged
		for try := 0; try < maxTries && errors.Is(err, errChanged); try++ {
			err = i.unchain(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take the plugin out of %s: %w", path, err))
		}
	}
	removeTemps(i.config.ConfDir)
	return errors.Join(errs...)
}

func (i *Installer) unchain(path string) error {
	n, err := load(path)
	if errors.As(err, new(invalidError)) {
		return nil // no runtime reads it, and our entry cannot be told from the rest
	}
	if err != nil || len(n.list.of(i.entry.kind)) == 0 {
		return err
	}
	rest := n.list.without(i.entry.kind)
	c := conversion{strings.TrimSuffix(path, listSuffix), i.entry.kind}
	if undone, err := c.undo(rest); err != nil || undone {
		return err
	}
	if err := replace(n.path, n.data, rest); err != nil {
		return err
	}
	if err := os.Remove(c.kept()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveBinary takes the binary away. It is for nodes whose sandboxes were all made without it; absent is success.
func (i *Installer) RemoveBinary() error {
	if err := os.Remove(i.binary()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
