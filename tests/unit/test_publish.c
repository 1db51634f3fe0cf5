/* test_publish.c: a file appears whole or not at all, and what killed writers left is removed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#if KVCI_LINUX_CALLS
#include <sys/file.h>
#endif

#include "blake3.h"
#include "cases.h"
#include "publish.h"
#include "status.h"

static const char text[] = "what a writer has to say";

static enum kvc_status publish(const char *path, enum kvc_durability durability, int commit,
                               struct kvc_error *error)
{
    struct kvci_publish file;
    enum kvc_status status = kvci_publish_open(path, NULL, &file, error);
    if (status != KVC_OK) {
        return status;
    }
    if (write(file.fd, text, sizeof(text)) != (ssize_t)sizeof(text)) {
        bail_out("writing");
    }
    if (commit) {
        status = kvci_publish_commit(&file, durability, error);
    }
    kvci_publish_close(&file, NULL);
    return status;
}

/* The name under which FORMAT's writers put a file before it has its own. */
static void temporary_path(const char *folder, const char *name, unsigned slot,
                           char ret_path[CASE_PATH_BYTES])
{
    uint8_t digest[32];
    char hex[33];
    char temporary[64];
    kvci_blake3_hash(name, strlen(name), digest);
    kvci_hex(digest, 16, hex);
    (void)snprintf(temporary, sizeof(temporary), ".kvc-%s-%u.tmp", hex, slot);
    join_path(ret_path, folder, temporary);
}

static void new_names(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    make_folder(folder);
    for (int level = 0; level <= KVC_DURABILITY_NONE; level++) {
        char name[2] = {(char)('a' + level), '\0'};
        join_path(path, folder, name);
        CHECK_STATUS(publish(path, (enum kvc_durability)level, 1, NULL), KVC_OK);
        CHECK(same_file_bytes(path, (const uint8_t *)text, sizeof(text)));
    }
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 3);
}

static void replaced_names(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    char old[8] = {0};
    make_folder(folder);
    join_path(path, folder, "file");
    put_file(path, "older", 5);
    int fd = open(path, O_RDONLY);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK(same_file_bytes(path, (const uint8_t *)text, sizeof(text)));
    /* Who has the old file open keeps it. */
    CHECK(pread(fd, old, sizeof(old), 0) == 5 && memcmp(old, "older", 5) == 0);
    (void)close(fd);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}

static void nothing_without_commit(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    make_folder(folder);
    join_path(path, folder, "file");
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 0, NULL), KVC_OK);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
    put_file(path, "older", 5);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 0, NULL), KVC_OK);
    CHECK(same_file_bytes(path, (const uint8_t *)"older", 5));
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}

static void links_are_replaced(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    char target[CASE_PATH_BYTES];
    struct stat facts;
    make_folder(folder);
    join_path(path, folder, "link");
    join_path(target, folder, "target");
    put_file(target, "older", 5);
    CHECK(symlink("target", path) == 0);
    CHECK_STATUS(publish(path, KVC_DURABILITY_NONE, 1, NULL), KVC_OK);
    CHECK(lstat(path, &facts) == 0 && S_ISREG(facts.st_mode));
    CHECK(same_file_bytes(target, (const uint8_t *)"older", 5));
    (void)unlink(path);
    CHECK(symlink("nowhere", path) == 0);
    CHECK_STATUS(publish(path, KVC_DURABILITY_NONE, 1, NULL), KVC_OK);
    CHECK(lstat(path, &facts) == 0 && S_ISREG(facts.st_mode));
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 2);
}

static void make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || strlen(path) >= sizeof(address.sun_path)) {
        bail_out("making a socket");
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        bail_out("binding a socket");
    }
    (void)close(fd);
}

static void other_things_are_kept(void)
{
    static const char *const names[] = {"folder", "pipe", "socket", "link"};
    char folder[CASE_PATH_BYTES];
    char paths[4][CASE_PATH_BYTES];
    struct kvc_error error = KVC_ERROR_INIT;
    make_folder(folder);
    for (int i = 0; i < 4; i++) {
        join_path(paths[i], folder, names[i]);
    }
    CHECK(mkdir(paths[0], 0700) == 0);
    CHECK(mkfifo(paths[1], 0600) == 0);
    make_socket(paths[2]);
    CHECK_STATUS(publish(paths[0], KVC_DURABILITY_FULL, 1, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, EISDIR);
    CHECK_STATUS(publish(paths[1], KVC_DURABILITY_FULL, 1, NULL), KVC_E_NOT_REGULAR);
    CHECK_STATUS(publish(paths[2], KVC_DURABILITY_FULL, 1, NULL), KVC_E_NOT_REGULAR);
    /* A link to the pipe stands for it, as /dev/stdout does. */
    CHECK(symlink("pipe", paths[3]) == 0);
    CHECK_STATUS(publish(paths[3], KVC_DURABILITY_FULL, 1, &error), KVC_E_NOT_REGULAR);
    CHECK(strstr(error.message, "choose another name") != NULL);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 4);
}

static void impossible_paths(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    struct kvc_error error = KVC_ERROR_INIT;
    make_folder(folder);
    static const struct {
        const char *name;
        int sys_errno;
    } cases[] = {
        {"missing/file", ENOENT}, {"folder/", EISDIR}, {".", EISDIR},
        {"..", EISDIR},           {"file/x", ENOTDIR},
    };
    join_path(path, folder, "file");
    put_file(path, "older", 5);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        join_path(path, folder, cases[i].name);
        CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, &error), KVC_E_IO);
        CHECK_NUMBER((uint64_t)error.sys_errno, (uint64_t)cases[i].sys_errno);
    }
    CHECK_STATUS(publish("", KVC_DURABILITY_FULL, 1, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, ENOENT);
    CHECK_STATUS(publish("/", KVC_DURABILITY_FULL, 1, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, EISDIR);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}

static void long_names(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    char name[257] = {0};
    struct kvc_error error = KVC_ERROR_INIT;
    make_folder(folder);
    memset(name, 'n', 255);
    join_path(path, folder, name);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    name[255] = 'n';
    join_path(path, folder, name);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, ENAMETOOLONG);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}

static void relative_paths(void)
{
    char folder[CASE_PATH_BYTES];
    char before[CASE_PATH_BYTES];
    make_folder(folder);
    if (getcwd(before, sizeof(before)) == NULL || chdir(folder) != 0 || mkdir("in", 0700) != 0) {
        bail_out("changing the folder");
    }
    CHECK_STATUS(publish("plain", KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_STATUS(publish("./dotted", KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_STATUS(publish("in/../up", KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_STATUS(publish("in//deep", KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK(same_file_bytes("in/deep", (const uint8_t *)text, sizeof(text)));
    (void)unlink("in/deep");
    if (chdir(before) != 0) {
        bail_out("changing the folder back");
    }
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 4);
}

static void modes_follow_the_umask(void)
{
    static const mode_t masks[] = {0, 022, 027, 077, 0777};
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    struct stat facts;
    make_folder(folder);
    join_path(path, folder, "file");
    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        mode_t before = umask(masks[i]);
        CHECK_STATUS(publish(path, KVC_DURABILITY_NONE, 1, NULL), KVC_OK);
        CHECK(umask(before) == masks[i]);
        CHECK(stat(path, &facts) == 0 && (facts.st_mode & 07777) == (0666 & ~masks[i]));
    }
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}

#if KVCI_LINUX_CALLS
static void stale_files_go(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    char stale[CASE_PATH_BYTES];
    make_folder(folder);
    join_path(path, folder, "file");
    static const unsigned slots[] = {0, 1, 63};
    for (int i = 0; i < 3; i++) {
        temporary_path(folder, "file", slots[i], stale);
        put_file(stale, "half", 4);
    }
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 1);
    /* What was left of another name is not its business, nor is a folder of that name. */
    temporary_path(folder, "other", 0, stale);
    put_file(stale, "half", 4);
    temporary_path(folder, "file", 0, stale);
    CHECK(mkdir(stale, 0700) == 0);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 3);
}

static void locked_files_stay(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    char living[CASE_PATH_BYTES];
    make_folder(folder);
    join_path(path, folder, "file");
    temporary_path(folder, "file", 0, living);
    put_file(path, "older", 5);
    put_file(living, "half", 4);
    int fd = open(living, O_RDONLY);
    CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK(same_file_bytes(path, (const uint8_t *)text, sizeof(text)));
    CHECK(same_file_bytes(living, (const uint8_t *)"half", 4));
    (void)close(fd);
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}

/* When living writers hold all temporary names, a new name can still be given, an old one not. */
static void all_slots_taken(void)
{
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    char living[CASE_PATH_BYTES];
    int fds[64];
    struct kvc_error error = KVC_ERROR_INIT;
    make_folder(folder);
    join_path(path, folder, "file");
    put_file(path, "older", 5);
    for (unsigned slot = 0; slot < 64; slot++) {
        temporary_path(folder, "file", slot, living);
        put_file(living, "half", 4);
        fds[slot] = open(living, O_RDONLY);
        CHECK(flock(fds[slot], LOCK_EX | LOCK_NB) == 0);
    }
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, EEXIST);
    CHECK(same_file_bytes(path, (const uint8_t *)"older", 5));
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 65);
    for (unsigned slot = 0; slot < 64; slot++) {
        (void)close(fds[slot]);
    }
    CHECK_STATUS(publish(path, KVC_DURABILITY_FULL, 1, NULL), KVC_OK);
    CHECK_NUMBER((uint64_t)count_folder(folder, 1), 1);
}
#endif

int main(void)
{
    run_case("a new name appears at every durability", new_names);
    run_case("an old name is replaced, and its inode stays", replaced_names);
    run_case("without a commit nothing is left", nothing_without_commit);
    run_case("a symbolic link is replaced, not followed", links_are_replaced);
    run_case("folders, pipes, sockets and devices are refused and stay", other_things_are_kept);
    run_case("impossible paths are refused with their errno", impossible_paths);
    run_case("a name of 255 bytes is written, and replaced", long_names);
    run_case("relative paths go by the current folder", relative_paths);
    run_case("the mode is 0666 as the umask cuts it", modes_follow_the_umask);
#if KVCI_LINUX_CALLS
    run_case("temporary files of dead writers of the name are removed", stale_files_go);
    run_case("temporary files of living writers stay", locked_files_stay);
    run_case("64 living writers of one name are too many", all_slots_taken);
#else
    (void)temporary_path;
#endif
    return end_cases();
}
