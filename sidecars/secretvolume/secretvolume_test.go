package secretvolume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// publish shows a version of a Secret as the kubelet does, and removes the older one.
func publish(t *testing.T, volume, version string, values map[string]string) {
	t.Helper()
	before, _ := os.Readlink(filepath.Join(volume, dataLink))
	dir := filepath.Join(volume, version)
	err := os.MkdirAll(dir, 0o700)
	for key, value := range values {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600))
	}
	next := filepath.Join(volume, "..data_tmp")
	err = errors.Join(err, os.Symlink(version, next), os.Rename(next, filepath.Join(volume, dataLink)))
	if before != "" && before != version {
		err = errors.Join(err, os.RemoveAll(filepath.Join(volume, before)))
	}
	if err != nil {
		t.Error(err)
	}
}

func TestRead_volumes_giveKeys(t *testing.T) {
	root := t.TempDir()
	publish(t, filepath.Join(root, "mesh"), "..1", map[string]string{"tls.crt": "certificate", "tls.key": "key"})
	publish(t, filepath.Join(root, "empty"), "..1", nil)
	if err := os.Mkdir(filepath.Join(root, "absent"), 0o700); err != nil { // as an optional Secret that never was
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		secret string
		keys   []string
		want   map[string][]byte
		err    error
		text   string
	}{
		"all keys":              {secret: "mesh", want: map[string][]byte{"tls.crt": []byte("certificate"), "tls.key": []byte("key")}},
		"one key":               {secret: "mesh", keys: []string{"tls.crt"}, want: map[string][]byte{"tls.crt": []byte("certificate")}},
		"a key that is missing": {secret: "mesh", keys: []string{"tls.crt", "ca.crt"}, text: `it has no key "ca.crt"`},
		"no keys":               {secret: "empty", err: errMissing},
		"no Secret":             {secret: "absent", err: errMissing},
		"no volume":             {secret: "other", err: errNotMounted},
		"a path":                {secret: "../mesh", err: errNotMounted},
		"the directory itself":  {secret: ".", err: errNotMounted},
		"the one above":         {secret: "..", err: errNotMounted},
		"no name":               {secret: "", err: errNotMounted},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Volumes{root}.Read(c.secret, c.keys...)
			if c.text != "" {
				c.err = err
				if err == nil || err.Error() != c.text {
					t.Errorf("error %v, want %q", err, c.text)
				}
			}
			if !errors.Is(err, c.err) || !cmp.Equal(c.want, got) {
				t.Errorf("got %q, error %v, want %v", got, err, c.err)
			}
		})
	}
	if _, err := (Volumes{}).Read("etc"); !errors.Is(err, errNotMounted) {
		t.Errorf("without a directory: error %v", err)
	}
}

// What is read while the kubelet changes a volume is of one version, whole.
func TestRead_versionChanges_isNeverMixed(t *testing.T) {
	const versions, keys = 50, 5
	volumes := Volumes{t.TempDir()}
	version := func(i int) map[string]string {
		values := map[string]string{}
		for key := range keys {
			values[fmt.Sprint("key", key)] = strconv.Itoa(i)
		}
		return values
	}
	publish(t, filepath.Join(volumes.Root, "mesh"), "..0", version(0))
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 1; i <= versions; i++ {
			<-tick.C
			publish(t, filepath.Join(volumes.Root, "mesh"), fmt.Sprint("..", i), version(i))
		}
	})
	for last := ""; last != strconv.Itoa(versions) && !t.Failed(); {
		got, err := volumes.Read("mesh")
		if err != nil {
			t.Fatal(err) // what is changed meanwhile is read again
		}
		last = string(got["key0"])
		for key := range keys {
			if string(got[fmt.Sprint("key", key)]) != last || len(got) != keys {
				t.Errorf("a mixture: %q", got)
			}
		}
	}
	kubelet.Wait()
}
