package home

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// memoryName is the file in /dev/shm that the Envoys of a line share.
	memoryName = "envoy_shared_memory_0"
	// memoryCopy is its copy in the home, which only the node's root can read. Files of one proxy have its epoch in their names.
	memoryCopy = "shared-memory"
	// maxMemory bounds it: the proxy can write what it wants. Envoy's has 104 bytes.
	maxMemory = 64 << 10
)

// KeepMemory copies the memory that the Envoys of a line share, while none of them starts. Without one there is nothing to keep.
func KeepMemory(h Home) error {
	text, err := readMemory(filepath.Join(h.Shm(), memoryName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(h.Path, memoryCopy), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the proxies' shared memory: %w", err)
	}
	return nil
}

// RestoreMemory puts the copy in the memory's place, as a new file. An Envoy that ends while it starts leaves a mark at which Envoy refuses each later one of
// its line ("previous envoy process is still initializing", envoyproxy/envoy#1537). The running one goes on with the former file: in it there are that
// mark, the protocol's version, and locks of the log, which the two no longer share.
func RestoreMemory(h Home, o Owner) error {
	text, err := os.ReadFile(filepath.Join(h.Path, memoryCopy))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	next := filepath.Join(h.Shm(), memoryName+".next")
	if err == nil {
		err = os.RemoveAll(next)
	}
	if err == nil {
		err = writeNew(next, text, o)
	}
	if err == nil {
		err = os.Rename(next, filepath.Join(h.Shm(), memoryName))
	}
	if err != nil {
		return fmt.Errorf("restore the proxies' shared memory: %w", err)
	}
	return nil
}

func readMemory(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxMemory {
		return nil, errors.Join(err, errors.New("it is no small file"))
	}
	return io.ReadAll(io.LimitReader(f, maxMemory))
}

// writeNew writes a file that is not there yet, in a directory that the proxy can write to.
func writeNew(path string, text []byte, o Owner) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Chown(int(o.UID), int(o.GID)), f.Close())
}
