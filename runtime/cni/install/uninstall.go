package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxTries bounds how often a file is read again that others change at the same time.
const maxTries = 10

// Uninstall removes the entry from every list that holds it. A file that nobody else has changed is then byte for byte what it was
// before. The binary stays: runtimes call it once more for each sandbox that was made with it.
func (i *Installer) Uninstall() error {
	lists, err := i.lists()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range lists {
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

// lists returns the paths of all lists; none if there is no directory.
func (i *Installer) lists() ([]string, error) {
	entries, err := os.ReadDir(i.config.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var lists []string
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) == listSuffix {
			lists = append(lists, filepath.Join(i.config.ConfDir, e.Name()))
		}
	}
	return lists, nil
}

func (i *Installer) unchain(path string) error {
	n, err := load(path)
	switch {
	case isInvalid(err):
		return nil // no runtime reads it, and our entry cannot be found in it
	case err != nil:
		return err
	}
	if len(n.indicesOf(i.entry.kind)) == 0 {
		return nil
	}
	return replace(n.path, n.data, n.withoutType(i.entry.kind))
}

// RemoveBinary removes the binary. Use it when no sandbox of the node was made with it. Absent is success.
func (i *Installer) RemoveBinary() error {
	if err := os.Remove(i.binary()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
