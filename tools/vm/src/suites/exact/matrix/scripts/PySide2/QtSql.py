# SPDX-License-Identifier: GPL-2.0 OR MIT
"""As much of Qt's module of this name as perf's export-to-sqlite.py needs, by Python's own."""

import sqlite3


class QSqlDatabase:
    @staticmethod
    def addDatabase(_driver):
        return QSqlDatabase()

    def setDatabaseName(self, name):
        self.name = name

    def open(self):
        self.connection = sqlite3.connect(self.name, isolation_level=None)


class QSqlQuery:
    def __init__(self, database):
        self.connection = database.connection
        self.values = []
        self.error = ""

    def prepare(self, text):
        self.prepared = text

    def addBindValue(self, value):
        self.values.append(value)

    def exec_(self, text=None):
        values, self.values = self.values, []
        try:
            self.rows = self.connection.execute(text or self.prepared, values)
        except sqlite3.Error as error:
            self.error = str(error)
            return False
        return True

    def next(self):
        return self.rows.fetchone() is not None

    def lastError(self):
        return self

    def text(self):
        return self.error
