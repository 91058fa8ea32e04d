package sidecars

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// baseID is the base ID of every Envoy. It names sockets and memory, which both lie in the home. It is not 0, Envoy's default.
const baseID = 1

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
	sharedName         = "envoy_shared_memory_10" // an Envoy multiplies its base ID by ten
)

// endInitializing clears the flag "initializing" in the memory that the Envoys of a line share. An Envoy that ends while it starts leaves it
// set, and then each later one refuses to start ("previous envoy process is still initializing"). The caller makes sure that none is
// starting. Memory of other versions is left alone.
func (h home) endInitializing() error {
	name := filepath.Join(h.path, "shm", sharedName)
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
