package sidecars

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// baseIDs is the directory of the base IDs in use. Each is a link to the home that has it, so that the file system gives an ID to one
// home only, also if two agents ask.
const baseIDs = "base-ids"

// maxBaseIDs bounds the base IDs: a node has a few hundred pods.
const maxBaseIDs = 1 << 16

// baseID returns the home's base ID, which no other home of the node has.
func (h Homes) baseID(k Key) (uint32, error) {
	dir := filepath.Join(h.Root, baseIDs)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, fmt.Errorf("make directory of base IDs: %w", err)
	}
	used, err := h.baseIDsInUse()
	if err != nil {
		return 0, err
	}
	for _, id := range slices.Sorted(maps.Keys(used)) {
		if used[id] == k.name() {
			return id, nil
		}
	}
	for id := uint32(1); id < maxBaseIDs; id++ {
		if used[id] != "" {
			continue
		}
		err := os.Symlink(k.name(), filepath.Join(dir, number(id)))
		if err == nil {
			return h.baseID(k) // another agent may have given it one at the same time: both take the lower
		}
		if !errors.Is(err, os.ErrExist) {
			return 0, err
		}
	}
	return 0, fmt.Errorf("all %d base IDs are in use", maxBaseIDs)
}

// baseIDsInUse returns the names of the homes that have base IDs.
func (h Homes) baseIDsInUse() (map[uint32]string, error) {
	dir := filepath.Join(h.Root, baseIDs)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list base IDs: %w", err)
	}
	out := map[uint32]string{}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		if owner, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			out[uint32(id)] = owner
		}
	}
	return out, nil
}

// sweepBaseIDs frees the IDs of homes that are gone.
func (h Homes) sweepBaseIDs() error {
	used, err := h.baseIDsInUse()
	for id, owner := range used {
		if _, errHome := os.Lstat(filepath.Join(h.Root, owner)); errors.Is(errHome, os.ErrNotExist) {
			err = errors.Join(err, os.Remove(filepath.Join(h.Root, baseIDs, number(id))))
		}
	}
	return err
}

// lineSocket begins the names of a line's sockets in the run directory; the number of the line follows, and then what Envoy adds.
const lineSocket = "hot-"

// removeLines removes the sockets of all lines but some: an Envoy leaves its own behind. What it cannot remove goes with the home.
func (h home) removeLines(but []uint32) {
	files, _ := filepath.Glob(filepath.Join(h.path, "run", lineSocket+"*")) // which fails on bad patterns only
	for _, file := range files {
		line, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(file), lineSocket), "_")
		id, errID := strconv.ParseUint(line, 10, 32)
		if errID == nil && slices.Contains(but, uint32(id)) {
			continue
		}
		_ = os.Remove(file)
	}
}

// The memory that Envoys of a line share, as version 11 of their protocol lays it out (source/server/hot_restart_impl.h): the size, the
// version, two locks, and flags.
const (
	sharedSize         = 104
	sharedVersion      = 11
	sharedFlags        = 96
	sharedInitializing = 1
)

// endInitializing clears the flag "initializing" in the memory that the Envoys of a line share. An Envoy that ends while it starts leaves it
// set, and then each later one refuses to start ("previous envoy process is still initializing"). The caller makes sure that none is
// starting. Memory of other versions is left alone.
func (h home) endInitializing(baseID uint32) error {
	// An Envoy multiplies its base ID by ten.
	name := filepath.Join(h.path, "shm", "envoy_shared_memory_"+number(baseID)+"0")
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return fmt.Errorf("open the proxies' shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() //nolint:errcheck // what was written is in memory
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != sharedSize {
		return err
	}
	var memory [sharedSize]byte
	if _, err := file.ReadAt(memory[:], 0); err != nil {
		return fmt.Errorf("read the proxies' shared memory: %w", err)
	}
	order := binary.NativeEndian
	flags := order.Uint64(memory[sharedFlags:])
	if order.Uint64(memory[:]) != sharedSize || order.Uint64(memory[8:]) != sharedVersion || flags&sharedInitializing == 0 {
		return nil
	}
	order.PutUint64(memory[sharedFlags:], flags&^sharedInitializing)
	if _, err := file.WriteAt(memory[sharedFlags:], sharedFlags); err != nil {
		return fmt.Errorf("write the proxies' shared memory: %w", err)
	}
	return nil
}
