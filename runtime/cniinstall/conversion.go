package cniinstall

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// conversion turns a configuration of one plugin, which cannot be chained to, into a list. The list sorts right behind the
// file that it is made of, so that runtimes choose it where they chose that; the file is kept under a name that they do
// not read, for the way back.
type conversion struct {
	single string
	kind   string
}

func (c conversion) list() string { return c.single + listSuffix }

func (c conversion) kept() string { return c.single + "." + c.kind }

// make writes the list, then puts the file away: at any moment a runtime finds the one or the other.
func (c conversion) make(was, text []byte) error {
	made, err := c.write(text)
	if err != nil {
		return err
	}
	err = os.Rename(c.single, c.kept())
	if errors.Is(err, fs.ErrNotExist) {
		if made {
			err = os.Remove(c.list()) // its owner wants this network no more
		}
		return errors.Join(errChanged, err)
	}
	if err != nil {
		return err
	}
	if there, err := read(c.kept()); err != nil || !bytes.Equal(there, was) {
		return errors.Join(errChanged, err, moveNew(c.kept(), c.single))
	}
	return syncDir(filepath.Dir(c.single))
}

// write tells whether it made a file that was not there.
func (c conversion) write(text []byte) (made bool, err error) {
	switch there, err := read(c.list()); {
	case err == nil && bytes.Equal(there, text):
		return false, nil
	case err == nil:
		return false, replace(c.list(), there, text)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	info, err := os.Stat(c.single)
	if errors.Is(err, fs.ErrNotExist) {
		return false, errChanged
	}
	if err != nil {
		return false, err
	}
	temp, err := writeTemp(filepath.Dir(c.single), bytes.NewReader(text), info, info.Mode().Perm())
	if err != nil {
		return false, err
	}
	if err := moveNew(temp, c.list()); err != nil {
		return false, errors.Join(err, os.Remove(temp))
	}
	return true, nil
}

// undo brings the kept file back, where the list is still what was made of it, and tells whether it was.
func (c conversion) undo(rest []byte) (bool, error) {
	kept, err := read(c.kept())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if list, err := fromConf(kept); err != nil || !bytes.Equal(list, rest) {
		return false, nil //nolint:nilerr // what was kept is no configuration any more: the list is all there is
	}
	if err := moveNew(c.kept(), c.single); errors.Is(err, fs.ErrExist) {
		err = os.Remove(c.kept()) // its owner has written it anew
		if err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	return true, errors.Join(os.Remove(c.list()), syncDir(filepath.Dir(c.single)))
}
