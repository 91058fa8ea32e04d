package cniinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxTries bounds how often a file is looked at again that others are writing.
const maxTries = 10

// Uninstall takes the entry out of every list that holds it, and takes the derived lists away. A file that nobody else has
// changed since is then, byte for byte, what it was; a derived list to which others were chained stays for them. The binary
// stays: runtimes call it once more for every sandbox that was made with it.
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

// lists gives the paths of all lists. There are none where there is no directory.
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
	_, ours := derivedFrom(path, i.entry.kind)
	switch {
	case errors.As(err, new(invalidError)) && ours:
		return remove(path)
	case errors.As(err, new(invalidError)):
		return nil // no runtime reads it, and our entry cannot be told from the rest
	case err != nil:
		return err
	}
	rest := len(n.list.plugins) - len(n.list.of(i.entry.kind))
	switch {
	case ours && rest <= 1: // the owner's plugin alone, for which the owner's file is there
		return remove(path)
	case rest == len(n.list.plugins):
		return nil
	}
	return replace(n.path, n.data, n.list.without(i.entry.kind))
}

// RemoveBinary takes the binary away. It is for nodes whose sandboxes were all made without it; absent is success.
func (i *Installer) RemoveBinary() error {
	return remove(i.binary())
}
