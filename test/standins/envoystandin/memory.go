package envoystandin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The memory that a line shares: its size, the version, two locks of 40 bytes, and flags.
const (
	memorySize   = 104
	flagsAt      = 96
	initializing = 1
)

// memory is the line's, in /dev/shm.
type memory struct{ file *os.File }

func attach(o options) (memory, error) {
	name := "/dev/shm/envoy_shared_memory_" + strconv.FormatUint(o.baseID, 10)
	number, err := strconv.ParseUint(strings.Split(version(), ".")[0], 10, 64)
	if err != nil {
		return memory{}, err
	}
	flags := os.O_RDWR
	if o.restartEpoch == 0 {
		_ = os.Remove(name)
		flags |= os.O_CREATE | os.O_EXCL
	}
	file, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		return memory{}, fmt.Errorf("cannot open shared memory region %s check user permissions: %w", name, err)
	}
	m := memory{file}
	if o.restartEpoch == 0 {
		return m, errors.Join(m.set(flagsAt, initializing), m.set(8, number), m.set(0, memorySize))
	}
	if m.get(0) != memorySize || m.get(8) != number {
		return m, fmt.Errorf("hot restart version mismatch: %d", m.get(8))
	}
	if m.get(flagsAt)&initializing != 0 {
		return m, errors.New("previous envoy process is still initializing")
	}
	return m, m.set(flagsAt, initializing)
}

func (m memory) initialized() error { return m.set(flagsAt, 0) }

func (m memory) get(at int64) uint64 {
	var word [8]byte
	_, _ = m.file.ReadAt(word[:], at)
	return binary.NativeEndian.Uint64(word[:])
}

func (m memory) set(at int64, value uint64) error {
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], value)
	_, err := m.file.WriteAt(word[:], at)
	return err
}
