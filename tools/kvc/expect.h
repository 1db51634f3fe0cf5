/* expect.h: the demands of --expect and their comparison with a file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_EXPECT_H
#define KVC_EXPECT_H

#include "kvc.h"

/* One demand, as it stands on the command line. */
struct expectation {
    const char *field; /* a path, `user.tenant`; not terminated */
    size_t field_bytes;
    const char *value; /* terminated */
};

/* Takes `field=value` apart. Returns CODE_GOOD, or CODE_USAGE after saying why. */
int expectation_parse(struct expectation *expectation, const char *command, const char *text);

/* Compares one demand with the file's metadata: as text where the file has a string there, else as
 * JSON, and as text again where the value is no JSON. KVC_E_IDENTITY when they differ. */
enum kvc_status expectation_check(const struct expectation *expectation,
                                  const struct kvc_reader *reader, kvc_difference_fn on_difference,
                                  void *context, struct kvc_error *error);

#endif
