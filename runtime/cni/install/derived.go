package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// derived is a list that we make from a file of one plugin, which cannot be chained to. The file belongs to its owner: it is neither
// changed nor renamed, and the list follows its changes.
//
// Example: 10-x.conf gives 10-x-istio-pod-network-cni-10-x.conf.conflist. Runtimes take the first name in lexical order, and "-"
// sorts before ".", so the list comes right before its file. Multus, which skips its own file by name (00-multus, 00-multus.conf)
// when it looks for the network to delegate to, skips the list as well.
type derived struct {
	kind   string // the entry's type
	single string // the owner's file, as listed
}

func (d derived) list() string {
	name := filepath.Base(d.single)
	stem := strings.TrimSuffix(name, filepath.Ext(name))
	return filepath.Join(filepath.Dir(d.single), stem+"-"+d.kind+"-"+name+listSuffix)
}

// derivedFrom is the inverse of list. ok reports whether the path is that of a derived list.
func derivedFrom(list, kind string) (d derived, ok bool) {
	_, rest, found := strings.Cut(strings.TrimSuffix(filepath.Base(list), listSuffix), "-"+kind+"-")
	for ; found; _, rest, found = strings.Cut(rest, "-"+kind+"-") { // the owner's name may contain it too
		d = derived{kind: kind, single: filepath.Join(filepath.Dir(list), rest)}
		if slices.Contains([]string{".conf", ".json"}, filepath.Ext(rest)) && d.list() == list {
			return d, true
		}
	}
	return derived{}, false
}

// upToDate reports whether the list holds our entry and, before it, the content of the owner's file. What others have chained to the list
// does not matter.
func (d derived) upToDate(owner network) bool {
	data, err := read(d.list())
	if err != nil {
		return false
	}
	have, err := parseList(data)
	return err == nil && len(have.indicesOf(d.kind)) > 0 && have.name == owner.list.name && slices.Equal(have.versions, owner.list.versions) &&
		equal(data[have.plugins[0].start:have.plugins[0].end], owner.data)
}

// write writes the list. If the owner's file is removed or changed at the same time, the list is removed again.
func (d derived) write(owner network, text []byte) error {
	if err := d.put(owner.path, text); err != nil {
		return err
	}
	if current, err := read(owner.path); err != nil || !bytes.Equal(current, owner.data) {
		return errors.Join(errChanged, remove(d.list()))
	}
	return syncDir(filepath.Dir(d.list()))
}

func (d derived) put(like string, text []byte) error {
	current, err := read(d.list())
	switch {
	case err == nil && bytes.Equal(current, text):
		return nil
	case err == nil:
		return replace(d.list(), current, text)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	info, err := os.Stat(like)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Dir(d.list()), bytes.NewReader(text), info, info.Mode().Perm())
	if err != nil {
		return err
	}
	err = moveNew(temp, d.list())
	if errors.Is(err, fs.ErrExist) {
		err = errChanged // another agent has written it meanwhile
	}
	if err != nil {
		return errors.Join(err, remove(temp))
	}
	return nil
}

// staleDerived returns the derived lists to remove: their owner's file is gone, no runtime would use it, or the list is out of date. used is
// the file of one plugin that the runtime uses, if any: its list is not returned, because it will be rewritten.
func staleDerived(dir, kind, used string) ([]string, error) {
	lists, err := filepath.Glob(filepath.Join(escape(dir), "*"+listSuffix))
	if err != nil {
		return nil, fmt.Errorf("look for derived lists: %w", err)
	}
	return slices.DeleteFunc(lists, func(list string) bool {
		d, ok := derivedFrom(list, kind)
		if !ok || d.single == used {
			return true
		}
		owner, err := load(d.single)
		return err == nil && d.upToDate(owner)
	}), nil
}

// escape quotes a directory's name for filepath.Glob.
func escape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// remove removes a file; absent is success.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
