// Package secretvolume reads Secrets from the volumes in which the kubelet shows them.
package secretvolume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// dataLink is the link that the kubelet points to the directory of the Secret's present version, by a rename.
	dataLink = "..data"
	// maxBytes bounds what is read of one Secret. The API server takes 1 MiB.
	maxBytes = 2 << 20
	// attempts is how often a Secret is read again that was changed meanwhile.
	attempts = 5
)

var (
	errNotMounted = errors.New("it is not one of the Secrets that the agent may use: name it in the chart's value proxies.secrets")
	// A volume of an optional Secret shows both alike.
	errMissing = errors.New("it is not there, or empty: create it in the agent's namespace; nodes have it a minute or two later")
)

// Volumes is a directory with a volume for each Secret, by the Secret's name.
type Volumes struct{ Root string }

// Read returns the values of a Secret's named keys, or of all without names. All are of one version. Errors contain no value.
func (v Volumes) Read(name string, keys ...string) (map[string][]byte, error) {
	values, err := v.read(name)
	if err != nil || len(keys) == 0 {
		return values, err
	}
	chosen := map[string][]byte{}
	for _, key := range keys {
		value, ok := values[key]
		if !ok {
			return nil, fmt.Errorf("it has no key %q", key)
		}
		chosen[key] = value
	}
	return chosen, nil
}

// read reads again if the kubelet has changed the volume meanwhile: it removes an older version once a newer one is in its place.
func (v Volumes) read(name string) (values map[string][]byte, err error) {
	if name == "" || filepath.Base(name) != name || name == "." || name == ".." {
		return nil, errNotMounted
	}
	dir := filepath.Join(v.Root, name)
	if _, err := os.Lstat(dir); v.Root == "" || err != nil {
		return nil, errNotMounted
	}
	for range attempts {
		version, errLink := os.Readlink(filepath.Join(dir, dataLink))
		if errLink != nil {
			return nil, errMissing
		}
		values, err = readVersion(filepath.Join(dir, filepath.Base(version)))
		if now, errNow := os.Readlink(filepath.Join(dir, dataLink)); errNow == nil && now == version {
			break
		}
		err = errors.New("it keeps changing")
	}
	switch {
	case err != nil:
		return nil, err
	case len(values) == 0:
		return nil, errMissing
	}
	return values, nil
}

// readVersion reads one version's directory, which does not change.
func readVersion(dir string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list its keys: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open it: %w", err)
	}
	defer root.Close()
	values, total := map[string][]byte{}, int64(0)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") || !entry.Type().IsRegular() {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("look at key %q: %w", entry.Name(), err)
		}
		if total += info.Size(); total > maxBytes {
			return nil, errors.New("it is larger than 2 MiB")
		}
		if values[entry.Name()], err = root.ReadFile(entry.Name()); err != nil {
			return nil, fmt.Errorf("read key %q: %w", entry.Name(), err)
		}
	}
	return values, nil
}
