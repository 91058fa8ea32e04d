package envoystandin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

// SharedMemory is what the Envoys of a line share: struct SharedMemory of source/server/hot_restart_impl.h, github.com/envoyproxy/envoy at commit
// 0042aea7cf79. It is written from that file and not from sidecars/hotrestart.go, so that either shows a mistake of the other.
type SharedMemory struct {
	Size, Version          uint64
	LogLock, AccessLogLock pthreadMutex
	Flags                  uint64 // std::atomic<uint64_t>
}

// pthreadMutex has the size and the alignment of pthread_mutex_t on amd64 (glibc, sysdeps/x86/nptl/bits/pthreadtypes-arch.h).
type pthreadMutex [5]int64

const (
	protocolVersion = 11  // HOT_RESTART_VERSION
	initializing    = 0x1 // SHMEM_FLAGS_INITIALIZING
)

// Bytes are the memory as it lies in /dev/shm.
func (s SharedMemory) Bytes() []byte {
	out, _ := binary.Append(nil, binary.NativeEndian, s) // it has no padding, so that each field lies at its offset
	return out
}

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
	size := uint64(unsafe.Sizeof(SharedMemory{}))
	if o.restartEpoch == 0 {
		_, err := file.WriteAt(SharedMemory{Size: size, Version: number, Flags: initializing}.Bytes(), 0)
		return m, err
	}
	var shared SharedMemory
	if err := m.read(&shared); err != nil || shared.Size != size || shared.Version != number {
		return m, errors.Join(fmt.Errorf("hot restart version mismatch: %d", shared.Version), err)
	}
	if shared.Flags&initializing != 0 {
		return m, errors.New("previous envoy process is still initializing")
	}
	return m, m.setFlags(initializing)
}

func (m memory) initialized() error { return m.setFlags(0) }

func (m memory) read(into *SharedMemory) error {
	text := make([]byte, unsafe.Sizeof(*into))
	if _, err := m.file.ReadAt(text, 0); err != nil {
		return err
	}
	_, err := binary.Decode(text, binary.NativeEndian, into)
	return err
}

func (m memory) setFlags(flags uint64) error {
	_, err := m.file.WriteAt(binary.NativeEndian.AppendUint64(nil, flags), int64(unsafe.Offsetof(SharedMemory{}.Flags)))
	return err
}
